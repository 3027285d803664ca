"""The commands of a relay."""
