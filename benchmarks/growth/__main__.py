"""`python -m benchmarks.growth [NAMES…] [--short] [--json FILE]`."""

from benchmarks.growth.run import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.growth")
