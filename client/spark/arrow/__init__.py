"""Events and rows as Arrow batches."""
