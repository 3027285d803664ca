"""Groups of consumers, as their records at the coordinator say: facts, owners, positions, moves."""
