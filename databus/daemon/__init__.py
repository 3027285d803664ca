"""What every daemon shares: HTTP and its limits, access, TLS, logs, files, a clean end."""
