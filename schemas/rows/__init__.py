"""Compiled decoding of rows: a plan per schema, and the decoder that follows it."""
