"""A client's own HTTP server, metrics, and reports to relays."""
