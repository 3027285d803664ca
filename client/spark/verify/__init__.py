"""Compare a target with its source, and repair differences."""
