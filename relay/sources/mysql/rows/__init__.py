"""Rows as the binlog has them: how they are packed, and what their values are."""
