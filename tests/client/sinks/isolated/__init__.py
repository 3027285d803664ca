"""Tests of sinks whose code runs in processes of its own."""
