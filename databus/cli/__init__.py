"""The command `databus`: shared code of its subcommands, and those that belong to no daemon."""
