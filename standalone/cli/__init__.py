"""The command `databus run`."""
