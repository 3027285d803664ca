"""`python -m benchmarks.takeover --faults 20 --ttl 3 --zookeeper 1 --seed S`."""

from benchmarks.takeover.run import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.takeover")
