"""Checkpoints: kept in files, listed, locked."""
