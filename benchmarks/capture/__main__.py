"""`python -m benchmarks.capture --json FILE`."""

from benchmarks.capture.run import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.capture")
