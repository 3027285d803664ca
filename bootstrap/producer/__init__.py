"""Writes what a relay sends into the store."""
