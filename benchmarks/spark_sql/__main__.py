"""`python -m benchmarks.spark_sql --changes N --seed S`."""

from benchmarks.spark_sql.run import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.spark_sql")
