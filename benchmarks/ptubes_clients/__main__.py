"""`python -m benchmarks.ptubes_clients [--short] [--changes N] [--seed S]`."""

from benchmarks.ptubes_clients.run import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.ptubes_clients")
