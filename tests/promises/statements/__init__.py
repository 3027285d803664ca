"""Statements that a source logged instead of their rows, from outside: every way to consume."""
