"""Rows as Arrow arrays."""
