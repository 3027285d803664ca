"""Compares the stored rows with the database's."""
