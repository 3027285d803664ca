"""Leases, their terms, and the small records that they are kept in: file, SQL or ZooKeeper."""
