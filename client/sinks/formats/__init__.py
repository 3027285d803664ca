"""Changes as the messages of other systems. Pure: a rule for each format; no target is known."""
