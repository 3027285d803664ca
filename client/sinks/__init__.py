"""Sinks: changes go to other systems, with a position for each sink and physical source."""
