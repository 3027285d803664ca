"""Serves the stock clients of Ptubes: its HTTP protocol, on ports of its own."""
