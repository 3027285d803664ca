"""Searches of the log: for statements, transactions and the place of a first start."""
