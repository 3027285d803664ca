"""`databus demo`: a shop, a relay and a consumer, all visible in a minute.

Contents: shop (the stream of transactions), databases (SQLite and a private MariaDB),
writer (commits the transactions, in its own process), processes (starts and stops child
processes), stage (folder, database and relay together), arrivals (counts and checks what
the consumer received), screen (displays it), show (one run), cli (the command).
"""
