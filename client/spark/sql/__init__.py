"""SQL job files: a table kept equal to a SELECT over sources."""
