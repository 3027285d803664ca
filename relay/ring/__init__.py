"""The ring: a file in memory, its index, its one writer and its readers."""
