"""A group of consumers, its relay and its ZooKeeper, killed and frozen while the source changes."""
