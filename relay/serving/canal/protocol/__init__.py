"""Canal's frames, messages, login and filters, and one connection as a state machine. No I/O."""
