"""The client API as type checkers see it."""
