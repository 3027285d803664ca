"""Servers that are found: entries of relays and bootstrap servers, in the stores of leases."""
