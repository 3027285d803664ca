"""Sinks of a settings file: `databus sink run`."""
