"""Two relays of one source: the one that captures is killed or frozen, again and again."""
