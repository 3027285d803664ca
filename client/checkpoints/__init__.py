"""Checkpoints: storage, locking, terms of leases, retries of writes."""
