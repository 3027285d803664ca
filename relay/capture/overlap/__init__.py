"""What two servers' logs have in common, found by the digests of windows."""
