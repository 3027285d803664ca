"""Physical sources: what a relay reads changes from. A package for each kind of database."""
