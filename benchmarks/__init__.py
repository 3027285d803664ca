"""Every speed claim of the project has a script here that shows it.

Contents: ring (appending), serve (HTTP), callback (client), latency (commit to
callback), memory (resident size), growth (cost against size), history_speed (the
relay log), torture (kills, nothing lost).

Each module has `figures(short: bool = False) -> list[Figure]` and is a command
of its own, `python -m benchmarks.<name> [--short] [--json FILE]`; `python -m
benchmarks` (`make bench`) runs them all in short form and prints one table. `performance_page`
writes the tables of docs/performance.md from these files.
"""
