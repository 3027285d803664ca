"""The pages about consuming, and their examples."""
