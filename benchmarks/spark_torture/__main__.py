"""`python -m benchmarks.spark_torture --rows N --kills K --seed S`."""

from benchmarks.spark_torture.run import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.spark_torture")
