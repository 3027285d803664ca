"""`python -m benchmarks.capture_fuzz`: damaged binlogs must only raise the project's errors.

Contents: statements (what real servers are made to log), recording (their logs
and all that is needed to read them without a server), damage (bytes cut and
flipped), reading (the same bytes by every path there is), run (rounds, the
command). `shared.sanitized` runs it under AddressSanitizer.
"""
