"""The sink `elasticsearch`, which is `opensearch`, too. Imports the contract and HTTP."""
