"""Rows as Spark's batches."""
