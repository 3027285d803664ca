"""`python -m benchmarks.sink_speed [SINK]...`."""

from benchmarks.sink_speed.run import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.sink_speed")
