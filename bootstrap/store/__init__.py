"""The store: snapshot and log of a source's rows in one SQLite file, and its checks."""
