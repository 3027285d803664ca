"""Relays whose source is another relay."""
