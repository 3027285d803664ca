"""The bootstrap pair: full snapshots and a long log, for clients that lagged out of the ring."""
