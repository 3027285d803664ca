"""`python -m benchmarks.first_hour`."""

from benchmarks.first_hour.run import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.first_hour")
