"""`databus demo`: a shop, a relay and a consumer, all visible in a minute.

Contents: shop (what happens in it), databases (SQLite and a private MariaDB),
writer (commits it, a process of its own), processes (start and stop children),
stage (folder, database and relay together), arrivals (what the consumer was
given, and whether that was right), screen (how it is shown), show (the run),
cli (the command).
"""
