"""How much faster several processes of a group are than one: `python -m benchmarks.group_scale`.

A real relay over SQLite, real processes, which meet in a folder. They wait until all of them own
their partitions; then all rows are inserted. The time is that from the first row that any of them
gets to the last one. Two kinds of callback: one that computes, so that two cores could do twice as
much if the relay needed none of them, and one that waits 5 ms for each row, as for a remote call.
"""

SOURCE = "shop.orders"
CREATE = "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL)"
