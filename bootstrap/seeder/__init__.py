"""Reads the tables of a database once, so that the snapshot begins whole."""
