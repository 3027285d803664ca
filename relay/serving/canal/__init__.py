"""The front door for clients of Canal."""
