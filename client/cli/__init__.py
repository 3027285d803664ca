"""The commands of a client."""
