"""What is asked of a server: who it is, what it has, where reading may begin."""
