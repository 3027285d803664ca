"""Settings: their models, reading them from TOML files, and their reference page."""
