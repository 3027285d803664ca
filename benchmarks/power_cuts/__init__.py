"""Cuts the power while a relay log is written, and checks what the disk has of it afterwards.

`disk` is a layer under the log's files that knows what a disk must have, and makes what it may
have; `run` does the cuts.
"""
