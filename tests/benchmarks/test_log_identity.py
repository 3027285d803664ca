"""The short form of `python -m benchmarks.log_identity`."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.adversity.servers import Servers
from benchmarks.log_identity import HOWS, KINDS, STATES, STOPPED, Case, all_cases, run_case, sample
from databus.relay.sources.mysql.replication.log_identities import Identities
from databus.relay.sources.mysql.source import MysqlSource

CASES = [
    Case("mariadb", "reset", "streaming"),
    Case("mariadb", "restored", "down", equal=False, compressed=True),
    Case("newer_mariadb", "another", "paused", checksum=False),
    Case("mysql", "reset", "rotating", gtids=False),
]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=getattr(pytest.mark, case.kind), id=str(case)) for case in CASES],
)
def test_a_log_that_was_replaced_stops_capture_with_both_identities(
    case: Case, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outcome, text = run_case(case, Servers(templates(tmp_path_factory)), tmp_path, seed=1)
    assert outcome == STOPPED, text
    assert "epoch" in text
    assert "begin anew" in text


def templates(factory: pytest.TempPathFactory) -> Path:
    folder = factory.getbasetemp() / "log-identity-templates"
    folder.mkdir(exist_ok=True)
    return folder


def test_the_matrix_has_every_combination_and_a_sample_each_server_way_and_state() -> None:
    assert len(all_cases()) == 2 * 3 * 4 * 8 + 3 * 4 * 16
    places = {(case.kind, case.how, case.state) for case in sample(36, 1)}
    assert len(places) == len(KINDS) * len(HOWS) * len(STATES)


@pytest.mark.mariadb
def test_the_matrix_can_fail(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MysqlSource, "expect", lambda _self, _marks: None)
    # Without what was kept the file's age is compared, which tells only what is a second apart.
    monkeypatch.setattr(Identities, "_check_birth", lambda *_: None)
    case = Case("mariadb", "reset", "down")
    outcome, _ = run_case(case, Servers(templates(tmp_path_factory)), tmp_path, seed=1)
    assert outcome != STOPPED
