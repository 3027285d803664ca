"""A MySQL or MariaDB server as a source.

kind         the SourceKind: what the rest of the project uses
source       the source that the relay opens; built from the folders below
server       queries to the server: connection, catalogue, checks, positions
replication  the connection as a replica, the assembler, the identity of the log
binlog       packets, events, transactions; the compiled binlog decoder
rows         rows events: columns, values, character sets
tables       definitions of tables over time, and the DDL that changes them
scan         tables read in chunks, beside the binlog
"""
