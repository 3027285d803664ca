"""The sink `mongodb`: rows as documents. Imports the contract, and the library `pymongo`."""
