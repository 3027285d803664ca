"""Tests of `databus demo`."""
