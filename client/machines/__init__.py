"""The three layers of state machines: messages in, instructions out. Pure."""
