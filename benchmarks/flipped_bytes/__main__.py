"""`python -m benchmarks.flipped_bytes --rounds N --seed S`."""

from benchmarks.flipped_bytes.run import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.flipped_bytes")
