"""Who has subscribed to a destination: batches, cursors, and reading for one consumer."""
