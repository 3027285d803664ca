"""Frames of a segment that is open: their events in memory, or as they lie on disk."""
