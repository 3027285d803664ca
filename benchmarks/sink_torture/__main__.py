"""`python -m benchmarks.sink_torture --sink kafka --kills 30 --outages 10 --order row --seed S`."""

from benchmarks.sink_torture.run import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.sink_torture")
