"""Reading a server's log as a replica does, and the proof that it is the same log."""
