"""The commands of the bootstrap pair."""
