"""The command `databus`: what its subcommands share, and those that belong to no daemon."""
