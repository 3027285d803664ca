"""Every command has a test that runs it: this table says where, and that it is so."""

from __future__ import annotations

import click
import pytest

from databus.cli.main import main
from tests.project.test_references import commands
from tools.repository import ROOT

# Command → a file of tests, or a page whose blocks are run, and how it is run there.
RUN_IN: dict[str, tuple[str, str]] = {
    "bootstrap run": ("tests/bootstrap/test_cli.py", 'shop.start("pair", "run"'),
    "bootstrap seed": ("tests/bootstrap/test_cli.py", '"seed"'),
    "bootstrap serve": ("tests/bootstrap/test_cli.py", 'shop.start("server", "serve"'),
    "bootstrap status": ("docs/bootstrap.md", "databus bootstrap status"),
    "bootstrap verify": ("docs/bootstrap.md", "databus bootstrap verify -c bootstrap.toml"),
    "checkpoint diff": ("tests/client/test_checkpoint_cli.py", 'databus("diff", '),
    "checkpoint set": ("tests/client/test_checkpoint_cli.py", 'databus("set", '),
    "checkpoint show": ("tests/client/test_checkpoint_cli.py", 'databus("show", '),
    "client run": ("tests/client/test_cli.py", '"client", "run"'),
    "completion": ("tests/conf/test_cli.py", "databus completion bash"),
    "config check": ("tests/conf/test_cli.py", 'databus("config", "check"'),
    "config reference": ("tests/conf/test_cli.py", 'databus("config", "reference"'),
    "demo": ("tests/demo/test_demo.py", '"demo", *arguments'),
    "doctor": ("tests/relay/test_doctor.py", '["doctor", *words'),
    "relay run": ("docs/getting-started.md", "databus relay run -c relay.toml"),
    "schema check": ("tests/registry/test_cli.py", '"check"'),
    "schema generate": ("tests/relay/test_schema_cli.py", '"generate"'),
    "schema list": ("tests/registry/test_cli.py", '"list"'),
    "schema repair": ("tests/relay/sources/test_mysql_history.py", '"repair"'),
    "schema show": ("tests/registry/test_cli.py", '"show"'),
    "spark load": ("tests/spark/test_load.py", '["spark", "load"'),
    "spark repair": ("tests/spark/test_verify_live.py", '["spark", "repair"'),
    "spark run": ("tests/spark/test_sql_page.py", "databus spark run"),
    "spark sync": ("tests/spark/test_sync.py", "sync(spark, "),
    "spark verify": ("tests/spark/test_verify_live.py", '["spark", "verify"'),
    "tail": ("tests/client/test_cli.py", '["tail", "shop.orders"'),
    "top": ("tests/relay/test_top.py", '["top", *words]'),
}


def test_every_command_is_in_the_table() -> None:
    found = {
        path.removeprefix("databus ")
        for path, command in commands(main)
        if not isinstance(command, click.Group)
    }
    assert found == set(RUN_IN)


@pytest.mark.parametrize("command", sorted(RUN_IN))
def test_every_command_is_run_by_a_test(command: str) -> None:
    file, words = RUN_IN[command]
    assert words in (ROOT / file).read_text(encoding="utf-8")


def test_every_group_has_an_example_too() -> None:
    groups = [(path, one) for path, one in commands(main) if isinstance(one, click.Group)]
    assert [path for path, one in groups if "Example: `databus" not in (one.help or "")] == []
