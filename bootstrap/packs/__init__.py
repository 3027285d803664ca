"""Rows of a store packed as columns, for readers of whole tables."""
