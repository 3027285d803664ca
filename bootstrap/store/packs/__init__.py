"""Rows of a store packed as columns, at rest."""
