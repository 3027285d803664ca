"""Partitions of rows shared by the processes of a group: the rules, without I/O and clocks."""
