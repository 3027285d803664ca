"""How consumers are served, whatever protocol they speak."""
