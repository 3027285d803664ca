"""Several processes that serve the readers of one relay, beside the one that captures."""
