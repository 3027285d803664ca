"""The partition of a row: its hash, by key or by columns, in Python and in compiled code."""
