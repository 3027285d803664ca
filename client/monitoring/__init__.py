"""What a client says of itself: stats, HTTP, metrics."""
