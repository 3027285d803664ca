"""`python -m benchmarks.canal_speed --rows 1000000 --transactions 200000 --repeats 3`."""

from benchmarks.canal_speed.run import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.canal_speed")
