"""Spark: the change stream and the tables behind it as DataFrames, and jobs on them."""
