"""Catch-ups: older windows, read a second time from the source's own log."""
