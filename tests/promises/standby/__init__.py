"""Relays that stand by for each other."""
