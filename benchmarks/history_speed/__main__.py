"""`python -m benchmarks.history_speed [--short] [--json FILE]`."""

from benchmarks.history_speed.run import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.history_speed")
