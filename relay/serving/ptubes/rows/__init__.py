"""Rows as the events of Ptubes, and the partitions that they are in."""
