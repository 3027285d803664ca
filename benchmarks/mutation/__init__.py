"""Changes one thing in a rule of the core, and checks whether a test notices.

Contents: operators (what is changed), mutants (all changes of a module, and a sample),
trial (one mutant and its tests, in a process of its own), run (the command, the table).
"""
