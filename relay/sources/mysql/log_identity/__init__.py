"""Whether a binlog is the one that was read before: what identifies it, and the proof."""
