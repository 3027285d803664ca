"""Settings of sinks: what goes together, and what does not."""

from __future__ import annotations

from typing import Any

import pytest

from databus.conf.loading import build_settings
from databus.conf.sink_settings import SinkSettings, SinksSettings
from databus.schemas.errors import SettingsError

SINK = {"name": "a", "kind": "print", "sources": ["shop.*", "!shop.tmp"]}


def sink(**given: Any) -> SinkSettings:
    return build_settings({**SINK, **given}, SinkSettings)


def test_a_sink_reads_what_its_patterns_match() -> None:
    patterns = sink().patterns
    assert [patterns.match(name) for name in ("shop.a", "shop.tmp", "other.a")] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"lanes": 2}, "order = 'transaction' has one lane"),
        ({"order": "rows"}, "order = 'rows'"),
        ({"name": "a/b"}, "name = 'a/b'"),
        ({"sources": []}, "sources"),
        ({"until": "latest"}, "until = 'latest': write an SCN"),
        ({"until": "binlog:mysql-bin.000012:4567"}, "write an SCN"),
        ({"flush": {"rows": 0}}, r"flush.rows = 0"),
        (
            {"unique": "writeset", "flush": {"compact": True}},
            "compact = true changes the order of rows",
        ),
        ({"failures": {"refused": {"then": "give up"}}}, r"failures.refused.then = 'give up'"),
        (
            {"tables": [{"sources": ["*"], "columns": ["a"], "without": ["b"]}]},
            "give columns or without, not both",
        ),
        (
            {"tables": [{"sources": ["*"], "rename": {"a": "x", "b": "x"}}]},
            "x is the name of two columns",
        ),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        sink(**given)


def test_sinks_have_names_of_their_own_and_servers_to_read() -> None:
    for raw, problem in (
        ({"sinks": [SINK, SINK], "relays": ["http://a"]}, "sink a is listed more than once"),
        ({"sinks": [SINK]}, "no server is named"),
        ({"sinks": [SINK], "relays": ["a"]}, "is not a URL"),
        ({"relays": ["http://a"], "sinks": []}, "sinks"),
    ):
        with pytest.raises(SettingsError, match=problem):
            build_settings({"data_dir": "d", **raw}, SinksSettings)
