"""The other relays of a physical source, with which one agrees on its epochs."""
