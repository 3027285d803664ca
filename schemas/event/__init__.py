"""One event: its bytes in both versions, its key, and the events that are not rows."""
