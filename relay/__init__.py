"""Capture change logs, keep the newest windows in rings, serve them over HTTP."""
