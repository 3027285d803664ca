"""Relays that stand by for each other: what they leave for each other, and who captures."""
