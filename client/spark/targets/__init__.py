"""Where changes go: Delta tables, SQL databases."""
