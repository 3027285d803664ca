"""Streams and pages of events: from the bytes that a server sent to whole rows."""
