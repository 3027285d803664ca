"""A relay and its bootstrap pair in one process, and the way to it from a database."""
