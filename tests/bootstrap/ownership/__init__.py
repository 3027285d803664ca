"""Tests of `bootstrap/ownership`."""
