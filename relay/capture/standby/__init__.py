"""Several relays of one physical source: one captures, under a lease, the others stand by."""
