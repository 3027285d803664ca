"""The admin API of the pair, its metrics and its status."""
