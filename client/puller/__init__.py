"""Carries out what the machines say: requests, decoding, the buffer."""
