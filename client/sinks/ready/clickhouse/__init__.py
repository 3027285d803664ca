"""The sink `clickhouse`: rows in tables that replace them by version. Imports HTTP, no library."""
