"""Rows as the columns of Canal's messages: the text and the Java type of each value."""
