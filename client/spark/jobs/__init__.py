"""Jobs that load tables and follow them."""
