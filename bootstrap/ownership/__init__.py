"""Which process fills a store: the one that locked it, or the one that has its lease."""
