"""Checksums of chunks, written into the source's own database; imports no Spark."""
