"""Where changes go: Delta tables, Parquet, SQL databases."""
