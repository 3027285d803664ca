"""`python -m benchmarks.spark_speed [--rows N] [--short] [--json FILE]`."""

from benchmarks.spark_speed.run import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.spark_speed")
