"""Calls the consumer, or yields windows, and says what may be checkpointed."""
