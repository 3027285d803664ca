"""The archive of a relay log: sealed segments in a store that outlives the relay's machine."""
