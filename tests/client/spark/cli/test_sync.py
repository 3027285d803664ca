"""`databus spark sync`: which SOURCE and TARGET go together."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from databus.cli.main import main
from databus.client.spark.cli import session_options

WORDS = ["--relay", "http://127.0.0.1:1", "--checkpoint", "checkpoints/shop"]


@pytest.mark.parametrize("source", ["shop.*", "shop.a,shop.b", "!shop.tmp", "shop.a, !shop.b", "*"])
@pytest.mark.parametrize("target", ["delta:lake/one", "sqlite:///lake.db#one"])
def test_several_tables_need_a_place_for_their_names_before_spark_is_started(
    monkeypatch: pytest.MonkeyPatch, source: str, target: str
) -> None:
    def start(*_: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(session_options, "job_session", start)
    found = CliRunner().invoke(main, ["spark", "sync", source, target, *WORDS])
    assert found.exit_code == 1
    assert found.output == (
        f"Error: target {target!r} is for one table, and {source!r} may be several: put {{table}} "
        "into the target, and {schema} if tables of several schemas are read, as in "
        "delta:lake/{schema}/{table}\n"
    )


def test_a_place_for_the_schema_alone_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_options, "job_session", lambda *_: None)
    words = ["spark", "sync", "shop.*", "delta:lake/{schema}", *WORDS]
    found = CliRunner().invoke(main, words)
    assert "is the same for every table: put {table} in it" in found.output
