"""An SQLite file as a source: triggers write a change log, which is read and trimmed."""
