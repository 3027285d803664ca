"""The commands `databus run` and `databus quickstart`."""
