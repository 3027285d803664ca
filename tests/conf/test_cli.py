"""The `databus` command: its subcommands, its errors, and `databus config`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from databus import __version__
from databus.conf.cli import COMMANDS, CommandAt, LazyGroup, main
from databus.conf.reference import settings_reference
from databus.schemas.errors import ScnNotFoundError

GOOD = 'data_dir = "data"\n[[physical_sources]]\nname = "a"\nuri = "sqlite:a.db"\nsources = ["b"]\n'


def databus(*words: str | Path) -> Result:
    """Run `databus` with the words."""
    return CliRunner().invoke(main, [str(word) for word in words])


@click.command()
def failing() -> None:
    """Fail as the project fails."""
    raise ScnNotFoundError(5, 9)


@click.command()
def wrong() -> None:
    """Fail as a bug does."""
    raise ZeroDivisionError


@click.group(
    cls=LazyGroup,
    lazy={
        "failing": CommandAt(f"{__name__}:failing", "Fail."),
        "wrong": CommandAt(f"{__name__}:wrong", "Break."),
        "missing": CommandAt("databus.no_such_module:x", "Never."),
    },
)
def group() -> None:
    """Hold commands that fail."""


@group.command()
def ordinary() -> None:
    """Work."""
    click.echo("worked")


def test_one_of_our_errors_is_one_line_and_exit_1() -> None:
    result = CliRunner().invoke(group, ["failing"])
    assert result.exit_code == 1
    assert result.stderr == "Error: scn 5 is gone; the oldest held is 9\n"


def test_a_bug_is_not_dressed_up_as_an_answer() -> None:
    result = CliRunner().invoke(group, ["wrong"])
    assert isinstance(result.exception, ZeroDivisionError)


def test_a_lazy_group_has_ordinary_commands_too() -> None:
    assert CliRunner().invoke(group, ["ordinary"]).output == "worked\n"
    assert CliRunner().invoke(group, ["nothing"]).exit_code == 2


def test_help_lists_every_command_without_importing_any() -> None:
    result = CliRunner().invoke(group, ["--help"])
    assert result.exit_code == 0
    listed = result.output.split("Commands:\n")[1].splitlines()
    assert [line.split() for line in listed] == [
        ["failing", "Fail."],
        ["missing", "Never."],
        ["ordinary", "Work."],
        ["wrong", "Break."],
    ]


def test_help_of_databus_loads_neither_tornado_nor_fastavro() -> None:
    script = (
        "import sys\n"
        "from databus.conf.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "sys.exit(any(name in sys.modules for name in ('tornado', 'fastavro', 'rich')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in COMMANDS)


def test_version_is_the_packages() -> None:
    assert databus("--version").output == f"databus, version {__version__}\n"


def test_config_check_says_that_a_file_is_good(tmp_path: Path) -> None:
    (tmp_path / "relay.toml").write_text(GOOD)
    result = databus("config", "check", tmp_path / "relay.toml", "--kind", "relay")
    assert result.exit_code == 0
    assert result.output.endswith("relay.toml: good settings for a relay\n")


@pytest.mark.parametrize(
    ("kind", "problem"),
    [("client", "relays is missing; data_dir is not a setting"), ("relay", "")],
)
def test_config_check_says_what_is_wrong_for_what_kind(
    tmp_path: Path, kind: str, problem: str
) -> None:
    (tmp_path / "relay.toml").write_text(GOOD)
    result = databus("config", "check", tmp_path / "relay.toml", "--kind", kind)
    assert result.exit_code == (1 if problem else 0)
    assert problem in result.output


def test_config_reference_prints_the_page() -> None:
    result = databus("config", "reference")
    assert result.output == settings_reference()
    assert '| `ring_bytes` | size | `"64MiB"` | ≥ 65536 |' in result.output
    assert "### `[[physical_sources.sources]]`" in result.output


@pytest.mark.parametrize("command", ["check", "reference"])
def test_each_config_command_has_help_with_an_example(command: str) -> None:
    result = databus("config", command, "--help")
    assert f"Example: `databus config {command}" in result.output
