"""`python -m benchmarks.serving_processes`."""

from benchmarks.serving_processes.run import main

if __name__ == "__main__":
    main()
