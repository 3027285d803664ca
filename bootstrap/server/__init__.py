"""Serves the store's rows: pages of a snapshot, then the log after it."""
