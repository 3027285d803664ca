"""Bytes that are flipped in the files at rest, and what is believed of them afterwards.

`files` makes a set of every kind of file that the project keeps and reads again,
by the code that writes them; `reading` opens a kind and says all that is delivered
and shown of it; `damage` is what happens to a file; `run` does the rounds.
"""
