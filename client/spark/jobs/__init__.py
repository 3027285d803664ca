"""Jobs that load tables into targets and keep them up to date."""
