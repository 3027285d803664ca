"""The sinks that come with databus, each loaded by its name."""
