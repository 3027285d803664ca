"""`python -m benchmarks.peers`."""

from benchmarks.peers.run import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.peers")
