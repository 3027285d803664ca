"""Where changes go: Delta and Iceberg tables, SQL databases."""
