"""`databus spark sync` and `load`: what is no TARGET is refused before Spark is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from databus.cli.main import main
from databus.client.spark.cli import session_options

JOB = """-- relays: http://127.0.0.1:1
-- target: {}
-- checkpoint: jobs/orders
SELECT id FROM shop.orders
"""
WORDS = ["--relay", "http://127.0.0.1:1", "--checkpoint", "checkpoints/shop"]


@pytest.fixture(autouse=True)
def _never_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(session_options, "job_session", start)


def refusal(*words: str) -> str:
    """Return what a command of `databus spark` that fails prints."""
    found = CliRunner().invoke(main, ["spark", *words])
    assert found.exit_code == 1
    return found.output


@pytest.mark.parametrize("source", ["shop.*", "shop.a,shop.b", "!shop.tmp", "shop.a, !shop.b", "*"])
@pytest.mark.parametrize("target", ["delta:lake/one", "sqlite:///lake.db#one"])
def test_several_tables_need_a_place_for_their_names_before_spark_is_started(
    source: str, target: str
) -> None:
    assert refusal("sync", source, target, *WORDS) == (
        f"Error: target {target!r} is for one table, and {source!r} may be several: put {{table}} "
        "into the target, and {schema} if tables of several schemas are read, as in "
        "delta:lake/{schema}/{table}\n"
    )


def test_a_place_for_the_schema_alone_is_not_enough() -> None:
    words = refusal("sync", "shop.*", "delta:lake/{schema}", *WORDS)
    assert "is the same for every table: put {table} in it" in words


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("nonsense:x", "is of no known form"),
        ("mysql://me:geheim@host/shop", "is of no known form"),
        ("mysql://me:geh eim@host/shop", "is of no known form"),
        ("mysql://me@host/shop?password=geheim", "is of no known form"),
        ("oracle://me:geheim@host/shop#t", "and not in oracle"),
        ("postgresql+nope://me:geheim@host/shop#t", "its driver is not there"),
        ("postgresql://me:geh#eim@host:x/shop#t", "is no URL of a database"),
        ("mysql+pymysql://me:a@geheim@host/shop#t", "is no URL of a database"),
        ("sqlite:///lake.db#", "names no table"),
        ("iceberg:lake.orders", "give iceberg:<catalog>.<namespace>.<table>"),
        ("iceberg:lake..orders", "give iceberg:<catalog>.<namespace>.<table>"),
        ("delta:", "is of no known form"),
        ("delta:a|b", "choose a folder of another name"),
    ],
)
def test_what_is_no_target_is_refused_without_its_password(
    tmp_path: Path, target: str, problem: str
) -> None:
    several = f"{target.removesuffix('t') if '#' in target else target}{{table}}"
    job = tmp_path / "job.sql"
    job.write_text(JOB.format(target))
    said = [refusal("sync", "shop.orders", target, *WORDS)]
    said.append(refusal("load", "shop.orders", target))
    said.append(refusal("load", "shop.person", "delta:lake/person", "shop.orders", target))
    said.append(refusal("load", "--sql", "SELECT * FROM shop.orders", target))
    said.append(refusal("run", str(job)))
    if target not in ("sqlite:///lake.db#", "iceberg:lake..orders", "delta:"):
        said.append(refusal("sync", "shop.*", several, *WORDS))
    for words in said:
        assert problem in words
        assert len(words.splitlines()) == 1
        assert "geh" not in words
        assert "eim" not in words
