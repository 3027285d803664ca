"""`python -m benchmarks.ladder --ring 1MiB --kills 4 --seed S`."""

from benchmarks.ladder.run import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.ladder")
