"""`python -m benchmarks.power_cuts --cuts 1000 --seed 1`."""

from benchmarks.power_cuts.run import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.power_cuts")
