"""Flips bytes in files at rest, and checks what is delivered from them afterwards.

`files` makes a set of every kind of file that the project keeps and reads again,
by the code that writes them; `reading` opens a kind and says all that is delivered
and shown of it; `damage` is what happens to a file; `run` does the rounds.
"""
