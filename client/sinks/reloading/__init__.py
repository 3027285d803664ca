"""Reloads: all rows of one source again, while a sink goes on with its changes."""
