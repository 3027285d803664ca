"""`python -m benchmarks.torture --source mysql|sqlite --transactions N --kills K --seed S`."""

from benchmarks.torture.run import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.torture")
