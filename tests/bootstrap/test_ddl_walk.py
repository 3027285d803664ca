"""Random DDL with rows between: every reader has what the source has. The short form."""

from __future__ import annotations

from pathlib import Path
from random import SystemRandom

from benchmarks.ddl_walk import run
from tests.mariadb_server import Database

pytest_plugins = ["tests.mariadb", "tests.mysql", "tests.both_servers"]

STEPS = 60


def test_every_reader_has_the_rows_of_the_source_after_a_random_walk_of_ddl(
    either_database: Database, tmp_path: Path
) -> None:
    seed = SystemRandom().randrange(1 << 30)
    print(f"seed {seed}")
    found = run(either_database, tmp_path, STEPS, seed)
    assert found.differences == []
    assert found.versions
    assert found.comparisons >= 6
