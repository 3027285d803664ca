"""`python -m benchmarks.mutation`."""

from benchmarks.mutation.run import main

main()
