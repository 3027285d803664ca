"""A process as a member of its group: its place in the store of leases, and what it owns."""
