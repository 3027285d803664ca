"""The settings of the doors for clients of other systems: Canal and Ptubes."""
