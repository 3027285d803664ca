"""The Avro schemas of each source by SCN, and the compatibility of schemas.

Contents: version, store, registry (history and look-up), compatibility, cli.
"""
