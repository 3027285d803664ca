"""The rules of sinks: order, positions, failures, what is passed on. Pure: no threads, no clock."""
