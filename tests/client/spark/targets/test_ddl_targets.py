"""Forms of ALTER, several in one batch, into targets: the short form of the benchmark."""

from __future__ import annotations

from pathlib import Path

from benchmarks import ddl_targets
from benchmarks.shared.followed import places
from tests.bootstrap.alter_forms import CHAINS, KEY_CHAINS, MADE_TO_FIT
from tests.mariadb_server import Database

pytest_plugins = ["tests.mariadb"]

KINDS = ("delta", "sqlite")


def test_several_alters_in_one_batch_leave_every_target_equal_to_the_source(
    database: Database, delta_runtime: None, tmp_path: Path
) -> None:
    forms = (*CHAINS, *MADE_TO_FIT, *KEY_CHAINS)
    with places(KINDS, tmp_path) as at:
        found = ddl_targets.run(database, tmp_path, forms, at, None)
    assert found.differences == []
    assert found.comparisons == len(forms) * len(KINDS)
