"""Spark data sources: streams of changes, tables as of an SCN, tables of databases."""
