"""What is promised when another server is behind a source."""
