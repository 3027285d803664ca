"""The port for clients of Canal, and how they find it."""
