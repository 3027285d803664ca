"""The sink `redis`. Imports the contract, formats, and the library `redis`."""
