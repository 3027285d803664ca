"""How fast sinks write, beside the client library alone that writes the same: sink / alone."""
