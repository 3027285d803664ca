"""Which Avro schema a source had, and from which SCN on; what can read what.

Contents: version, store, registry (history and look-up), compatibility, cli.
"""
