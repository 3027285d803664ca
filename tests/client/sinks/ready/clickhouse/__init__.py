"""Tests of the sink `clickhouse`."""
