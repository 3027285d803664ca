"""HTTP of the daemons: handlers, the server with its limits, sending, a client, OpenAPI."""
