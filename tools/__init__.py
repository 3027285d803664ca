"""Scripts that the Makefile runs: checks, generated pages, test servers."""
