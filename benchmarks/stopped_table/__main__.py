"""`python -m benchmarks.stopped_table --seconds S`."""

from benchmarks.stopped_table.run import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.stopped_table")
