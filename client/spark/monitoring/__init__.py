"""Progress of queries: on a console, and as metrics."""
