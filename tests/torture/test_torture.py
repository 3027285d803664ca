"""The short form of the torture: relay and client killed, nothing lost, nothing cut."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from benchmarks.torture.run import main


def run(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


@pytest.mark.parametrize("source", ["sqlite", pytest.param("mysql", marks=pytest.mark.mariadb)])
def test_relay_and_client_are_killed_and_nothing_is_lost(source: str) -> None:
    shape = ("--transactions", 300, "--kills", 3, "--seed", 11, "--rate", 150)
    lines = run("--source", source, *shape).splitlines()
    assert lines[0] == "seed 11"
    assert lines[-1].endswith(": no problems")
    assert "300 of 300 transactions delivered" in lines[-1]
    assert "3 relay kills, 3 client kills" in lines[-1]


def test_killed_clients_are_given_windows_again() -> None:
    last = run("--transactions", 200, "--kills", 2, "--seed", 5, "--rate", 150).splitlines()[-1]
    found = re.search(r"(\d+) windows, (\d+) of them again", last)
    assert found is not None
    assert int(found[1]) > int(found[2])
