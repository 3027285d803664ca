"""Settings, the command line, and the shell every daemon runs in."""
