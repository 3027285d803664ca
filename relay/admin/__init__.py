"""The admin API, the page, metrics, and what changes a running relay."""
