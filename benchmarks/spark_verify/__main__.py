"""`python -m benchmarks.spark_verify --rows N --seed S --rate R`."""

from benchmarks.spark_verify.run import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.spark_verify")
