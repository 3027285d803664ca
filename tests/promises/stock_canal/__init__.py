"""The stock clients of Canal on relays of ours: nothing is lost, and the order is kept."""
