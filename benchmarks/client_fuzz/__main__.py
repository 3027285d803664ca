"""`python -m benchmarks.client_fuzz`."""

from benchmarks.client_fuzz.run import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.client_fuzz")
