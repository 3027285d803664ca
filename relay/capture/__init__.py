"""From a source's log to the ring, one loop for each physical source."""
