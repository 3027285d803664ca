"""Every command has a test that runs it: this table says where, and that it is so."""

from __future__ import annotations

import click
import pytest

from databus.cli.main import main
from tests.project.test_references import commands
from tools.repository import ROOT

# Command → a file of tests, or a page whose blocks are run, and how it is run there.
RUN_IN: dict[str, tuple[str, str]] = {
    "bootstrap run": ("tests/bootstrap/cli/test_bootstrap.py", 'shop.start("pair", "run"'),
    "bootstrap seed": ("tests/bootstrap/cli/test_bootstrap.py", '"seed"'),
    "bootstrap serve": ("tests/bootstrap/cli/test_bootstrap.py", 'shop.start("server", "serve"'),
    "bootstrap status": ("docs/bootstrap.md", "databus bootstrap status"),
    "bootstrap verify": ("docs/bootstrap.md", "databus bootstrap verify -c bootstrap.toml"),
    "checkpoint diff": ("tests/client/cli/test_checkpoint.py", 'databus("diff", '),
    "checkpoint set": ("tests/client/cli/test_checkpoint.py", 'databus("set", '),
    "checkpoint show": ("tests/client/cli/test_checkpoint.py", 'databus("show", '),
    "client run": ("tests/client/cli/test_client.py", '"client", "run"'),
    "completion": ("tests/databus/cli/test_config.py", "databus completion bash"),
    "config check": ("tests/databus/cli/test_config.py", 'databus("config", "check"'),
    "config reference": ("tests/databus/cli/test_config.py", 'databus("config", "reference"'),
    "demo": ("tests/demo/test_demo.py", '"demo", *arguments'),
    "doctor": ("tests/relay/cli/test_doctor.py", '["doctor", *words'),
    "group list": ("tests/client/cli/test_group.py", '"list"'),
    "group reset": ("tests/client/cli/test_group.py", '"reset", "billing"'),
    "group resize": ("tests/client/cli/test_group.py", '"resize", "billing"'),
    "group show": ("tests/client/cli/test_group.py", '"show", "billing"'),
    "log cut": ("tests/relay/cli/test_log.py", 'databus("cut", '),
    "log export": ("tests/relay/cli/test_log.py", 'databus("export", '),
    "log list": ("tests/relay/cli/test_log.py", 'databus("list", '),
    "log show": ("tests/relay/cli/test_log.py", 'databus("show", '),
    "log verify": ("tests/relay/cli/test_log.py", 'databus("verify", '),
    "quickstart": ("tests/standalone/cli/test_quickstart.py", '["quickstart", "--no-run"'),
    "relay run": ("docs/getting-started.md", "databus relay run -c relay.toml"),
    "run": ("tests/standalone/nodes.py", 'Node(folder, "run", "-c"'),
    "schema check": ("tests/registry/test_cli.py", '"check"'),
    "schema generate": ("tests/relay/cli/test_schema.py", '"generate"'),
    "schema list": ("tests/registry/test_cli.py", '"list"'),
    "schema repair": ("tests/relay/sources/mysql/tables/test_history.py", '"repair"'),
    "schema show": ("tests/registry/test_cli.py", '"show"'),
    "servers list": ("tests/databus/cli/test_servers.py", '["servers", "list", *words]'),
    **{
        f"sink {name}": ("tests/client/sinks/serving/test_steering.py", f'"{name}", "a"')
        for name in ("pause", "resume", "retry", "show", "skip")
    },
    "sink export": ("tests/client/sinks/serving/test_transfer.py", '"export", '),
    "sink import": ("tests/client/sinks/serving/test_transfer.py", '"import", '),
    "sink list": ("docs/sinks.md", "databus sink list -c sink.toml"),
    "sink positions": ("docs/sinks.md", "databus sink positions -c sink.toml"),
    "sink reload": ("tests/client/sinks/reloading/test_reload.py", '"reload", "copy"'),
    "sink replay-dead-letters": (
        "tests/client/sinks/serving/test_replay.py",
        '"replay-dead-letters", "a"',
    ),
    "sink run": ("docs/sinks.md", "databus sink run -c sink.toml"),
    "source add": ("tests/relay/test_source_changes.py", 'place.order("add", "crm"'),
    "source change": ("tests/relay/test_source_changes.py", 'place.order("change", "shop"'),
    "source list": (
        "tests/promises/switching/test_epoch_peers.py",
        '["source", "list", "--relay"',
    ),
    "source remove": ("tests/relay/test_source_changes.py", 'place.order("remove", "other"'),
    "source repair": (
        "tests/promises/history/test_stopped_table.py",
        '["source", "repair", "shop"',
    ),
    "source switch": ("tests/promises/switching/test_switch.py", '["source", "switch", "shop"'),
    "spark load": ("tests/client/spark/jobs/test_load.py", '["spark", "load"'),
    "spark repair": ("tests/client/spark/verify/test_live.py", '["spark", "repair"'),
    "spark run": ("tests/client/spark/sql/test_page.py", "databus spark run"),
    "spark sync": ("tests/client/spark/jobs/test_sync.py", "sync(spark, "),
    "spark verify": ("tests/client/spark/verify/test_live.py", '["spark", "verify"'),
    "tail": ("tests/client/cli/test_client.py", '["tail", "shop.orders"'),
    "top": ("tests/relay/cli/test_top.py", '["top", *words]'),
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
