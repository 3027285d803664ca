"""From a database's URI to a settings file: what is there, what is missing, what is written."""
