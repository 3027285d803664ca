"""Servers that are killed and replaced under load, in short form; see benchmarks/switch."""

from __future__ import annotations

import pytest

from benchmarks.switch.rounds import count_named
from benchmarks.switch.run import SHORT_SWITCHES, Kind, measure

ONE = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("mysql", marks=pytest.mark.mysql),
    ],
)
def test_each_killed_server_is_replaced_or_missed(kind: Kind) -> None:
    findings = measure(kind, SHORT_SWITCHES, 1, print)
    assert findings.problems == []
    assert (findings.lost, findings.twice) == (0, 0)
    assert len(findings.switched_s) == 1  # the other one was missed
    assert findings.named > 0


@pytest.mark.parametrize(
    ("named", "count"),
    [
        ("0-1-7", 1),
        ("0-1-7 to 0-1-9", 3),
        ("0-1-7, 1-2-5 to 1-2-6", 3),
        (f"{ONE}:4", 1),
        (f"{ONE}:4-6:9", 4),
    ],
)
def test_the_missing_transactions_of_an_error_are_counted(named: str, count: int) -> None:
    text = f"it lacks transactions that were delivered: {named}. No epoch begins there."
    assert count_named(text) == count
