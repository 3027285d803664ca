"""The bootstrap pair: snapshots and a long log for clients that fell behind; not built yet."""
