"""`python -m benchmarks.group_assignment`."""

from benchmarks.group_assignment.run import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.group_assignment")
