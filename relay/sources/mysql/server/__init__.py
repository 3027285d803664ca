"""Queries and checks of a server: its identity, its tables and log, the start position."""
