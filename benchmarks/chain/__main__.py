"""`python -m benchmarks.chain --kills 10 --rate 100 --seconds 20 --seed S`."""

from benchmarks.chain.run import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.chain")
