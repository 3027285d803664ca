"""`python -m benchmarks.sql_sink`."""

from benchmarks.sql_sink.run import main

if __name__ == "__main__":
    main()
