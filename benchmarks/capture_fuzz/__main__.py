"""`python -m benchmarks.capture_fuzz --rounds N --seed S [--sanitize]`."""

from benchmarks.capture_fuzz.run import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.capture_fuzz")
