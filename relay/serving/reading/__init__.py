"""Reads windows for those who consume, whatever protocol they speak."""
