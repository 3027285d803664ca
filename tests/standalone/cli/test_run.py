"""`databus run`: its options."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from databus.cli.main import main
from databus.demo.processes import free_port
from tests.standalone.nodes import Node, make_shop, sqlite_source


def test_both_ports_may_be_given_instead_of_the_settings(tmp_path: Path) -> None:
    ports = free_port(), free_port()
    options = ("--port", ports[0], "--bootstrap-port", ports[1])
    node = Node(tmp_path, "run", "-c", tmp_path / "relay.toml", *options)
    node.write(sqlite_source(make_shop(tmp_path)))
    node.start()
    try:
        assert f"listening on http://127.0.0.1:{ports[0]}, the relay and its page" in node.said
        assert f"listening on http://127.0.0.1:{ports[1]}, the bootstrap server" in node.said
    finally:
        node.child.stop(20)


def test_without_a_settings_file_it_says_so(tmp_path: Path) -> None:
    found = CliRunner().invoke(main, ["run", "-c", str(tmp_path / "none.toml")])
    assert found.exit_code == 1
    assert "No such file" in found.output
