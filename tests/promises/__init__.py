"""The promises of the issue's "Must show" list, on whole relays, clients and databases."""
