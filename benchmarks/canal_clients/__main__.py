"""`python -m benchmarks.canal_clients --changes 100000 --kills 3 --seed S`."""

from benchmarks.canal_clients.run import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.canal_clients")
