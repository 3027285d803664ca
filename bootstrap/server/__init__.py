"""Serves the store's rows: pages of a snapshot, and what came after it."""
