"""Tests of the sink `sql`, on real servers."""
