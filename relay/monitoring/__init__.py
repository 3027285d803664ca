"""What a relay knows of its clients, of errors, and of the time before."""
