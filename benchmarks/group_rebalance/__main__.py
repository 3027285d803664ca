"""`python -m benchmarks.group_rebalance`."""

from benchmarks.group_rebalance.run import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.group_rebalance")
