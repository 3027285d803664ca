"""Compare a target with its source, and make it right."""
