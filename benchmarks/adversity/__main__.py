"""`python -m benchmarks.adversity --seed S`."""

from benchmarks.adversity.run import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.adversity")
