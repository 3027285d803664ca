"""Planning of batches: where each one ends, and what each task reads."""
