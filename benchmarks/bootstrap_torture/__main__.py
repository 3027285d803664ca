"""`python -m benchmarks.bootstrap_torture --source mysql|sqlite --rows N --kills K --seed S`."""

from benchmarks.bootstrap_torture.run import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.bootstrap_torture")
