"""`python -m benchmarks.group_scale`."""

from benchmarks.group_scale.run import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.group_scale")
