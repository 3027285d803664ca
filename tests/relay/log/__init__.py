"""Tests of databus.relay.log."""
