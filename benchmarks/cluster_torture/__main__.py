"""`python -m benchmarks.cluster_torture --processes N --kills K --stops S --zookeeper 3`."""

from benchmarks.cluster_torture.run import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.cluster_torture")
