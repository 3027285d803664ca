"""The short form: everything killed while a new client bootstraps, and its rows are right."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from benchmarks.bootstrap_torture.run import main


@pytest.mark.parametrize("source", ["sqlite", pytest.param("mysql", marks=pytest.mark.mariadb)])
def test_all_are_killed_while_a_new_client_bootstraps_and_it_ends_with_the_sources_rows(
    source: str,
) -> None:
    shape = ("--rows", "4000", "--kills", "1", "--seed", "11", "--rate", "80", "--ring", "1MiB")
    result = CliRunner().invoke(main, ["--source", source, *shape])
    assert result.exit_code == 0, result.output
    lines = result.stdout.strip().splitlines()
    assert lines[0] == "seed 11"
    assert lines[-1].endswith(": no problems")
    assert "kills: 1 relay, 1 producer, 1 seeder, 1 server, 1 client" in lines[-1]
    assert "BOOTSTRAP_SNAPSHOT -> BOOTSTRAP_CATCHUP -> ONLINE_CONSUMPTION" in result.stdout
