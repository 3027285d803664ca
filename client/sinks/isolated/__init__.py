"""Isolated sinks: code of the user in a child process, with limits; pure rules, /proc, pipes."""
