"""What every daemon shares: HTTP with its limits, access, TLS, logs, files and the end of a process."""
