"""Changes applied in foreachBatch: in which order, by which rules."""
