"""Another relay as a source."""
