"""The binlog as a stream: packets, events, and the transactions that they make."""
