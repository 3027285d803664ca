"""Which frames of a segment may have a GTID: found where they are written, kept in its index."""
