"""`python -m benchmarks.switch --switches 20 --server mariadb --seed S`."""

from benchmarks.switch.run import main

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.switch")
