"""Sinks that run: a thread that reads, lanes that write."""
