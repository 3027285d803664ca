"""The commands that run Spark."""
