"""Reads the tables of a database once, to fill the snapshot."""
