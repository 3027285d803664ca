"""The data sources that Spark reads: streams of changes, tables, databases."""
