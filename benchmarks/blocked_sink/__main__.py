"""`python -m benchmarks.blocked_sink --minutes 10`."""

from benchmarks.blocked_sink.run import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.blocked_sink")
