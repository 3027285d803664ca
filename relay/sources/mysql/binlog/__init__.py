"""The binlog format: packets, events, GTIDs, and the compiled decoder."""
