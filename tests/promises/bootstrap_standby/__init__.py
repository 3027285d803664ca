"""Two bootstrap servers of one store: one fills it, the other stands by."""
