"""A MySQL or MariaDB server as a source.

source    what the relay opens: put together out of what follows
server    what is asked of the server: connection, catalogue, checks, positions
stream    its binlog: packets, events, transactions; the compiled lane
rows      rows events: columns, values, character sets
tables    definitions of tables over time, and the DDL that changes them
scan      tables read beside the binlog, in chunks
"""
