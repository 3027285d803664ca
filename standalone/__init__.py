"""A relay and its bootstrap pair in one process."""
