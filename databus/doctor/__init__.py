"""`databus doctor`: checks of the machine, the settings and the servers."""
