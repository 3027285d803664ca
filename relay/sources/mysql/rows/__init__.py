"""Decodes rows in the binlog's format: layouts, column types and values."""
