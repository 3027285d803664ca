"""Checkpoints: storage, locking, retries of writes."""
