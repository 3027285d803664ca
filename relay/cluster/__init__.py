"""What a relay sees of the cluster around it: groups, leases, servers, and the chain upward."""
