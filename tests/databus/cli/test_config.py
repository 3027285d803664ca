"""The `databus` command: its subcommands, its errors, and `databus config`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from databus import __version__
from databus.cli.main import COMMANDS, CommandAt, LazyGroup, main
from databus.conf.reference import kind_of, settings_reference
from databus.demo.processes import child_environment
from databus.schemas.errors import ScnNotFoundError
from tools.repository import ROOT

EXAMPLES = ROOT / "conf"

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


@pytest.mark.parametrize("words", [["spark", "load", "--help"], ["spark", "verify", "--help"]])
def test_a_command_whose_extra_is_not_installed_names_the_extra(words: list[str]) -> None:
    code = (
        "import sys; sys.modules.update(pyspark=None, pyarrow=None)\n"
        "from databus.cli.main import main\n"
        f"main({words})\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=ROOT
    )
    assert result.returncode == 1
    assert "pip install '.[spark]'" in result.stderr
    assert "Traceback" not in result.stderr


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
        "from databus.cli.main import main\n"
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
    assert result.output.endswith("relay.toml: valid settings for a relay\n")


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("client", "give relays, or the coordinator that lists them; data_dir is not a setting"),
        ("relay", ""),
    ],
)
def test_config_check_says_what_is_wrong_for_what_kind(
    tmp_path: Path, kind: str, problem: str
) -> None:
    (tmp_path / "relay.toml").write_text(GOOD)
    result = databus("config", "check", tmp_path / "relay.toml", "--kind", kind)
    assert result.exit_code == (1 if problem else 0)
    assert problem in result.output


def with_sources(folder: Path, sources: str, uri: str = "mysql://u@h") -> Path:
    file = folder / "relay.toml"
    file.write_text(
        'data_dir = "x"\n[[physical_sources]]\nname = "shop"\n'
        f'uri = "{uri}"\nsources = [{sources}]\n'
    )
    return file


def test_config_check_refuses_a_name_that_is_read_as_a_table_with_a_dot(tmp_path: Path) -> None:
    result = databus("config", "check", with_sources(tmp_path, '"com.shop.customers"'))
    assert result.exit_code == 1
    assert "'com.shop.customers' is read as the name of table 'shop.customers'" in result.output
    assert '{ name = "com.shop.customers", table = "shop.customers" }' in result.output
    clear = '{ name = "com.shop.customers", table = "com.shop.customers" }'
    assert databus("config", "check", with_sources(tmp_path, clear)).exit_code == 0


def test_config_check_warns_of_a_name_that_stock_clients_cannot_read(tmp_path: Path) -> None:
    file = with_sources(tmp_path, '{ name = "shop.Orders", table = "shop.orders" }, "shop.items"')
    result = databus("config", "check", file)
    assert result.exit_code == 0
    assert "physical source shop: sources: warning: 'shop.Orders' has two parts" in result.output
    assert "shop.items" not in result.output
    assert result.output.endswith("relay.toml: valid settings for a relay\n")


def test_config_check_names_the_key_of_sources_that_clash(tmp_path: Path) -> None:
    twice = '{ name = "a.b.C", table = "shop.t" }, { name = "a.b.D", table = "shop.t" }'
    result = databus("config", "check", with_sources(tmp_path, twice))
    assert result.exit_code == 1
    assert "physical_sources.0.sources = " in result.output
    assert "table shop.t is captured as a.b.C and a.b.D" in result.output


def test_config_reference_prints_the_page() -> None:
    result = databus("config", "reference")
    assert result.output == settings_reference()
    assert '| `ring_bytes` | size | `"64MiB"` | ≥ 65536 |' in result.output
    assert "### `[[physical_sources.sources]]`" in result.output


def test_the_kind_of_settings_is_seen_by_their_keys(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    for text, kind in (
        ("physical_sources = []", "relay"),
        ("physical_sources = []\nrelays = []", "bootstrap"),
        ("relays = []", "client"),
        ("relays = []\n[[sinks]]", "sink"),
        ('data_dir = "x"\nrelays = []', "sink"),
        ('data_dir = "x"\ncoordinator = "x"\n[http]', "sink"),
        ('data_dir = "x"\ncoordinator = "x"\nschema_dir = "x"', "relay"),
        ('coordinator = "x"\ncheckpoint_dir = "x"', "client"),
        ("", "relay"),
    ):
        file.write_text(text)
        assert kind_of(file) == kind


@pytest.mark.parametrize("kind", ["relay", "bootstrap", "client", "sink"])
def test_config_check_sees_of_itself_what_a_file_is_for(kind: str) -> None:
    result = databus("config", "check", EXAMPLES / f"{kind}.toml")
    assert result.output.endswith(f"{kind}.toml: valid settings for a {kind}\n")


@pytest.mark.parametrize(
    ("sink", "problem"),
    [
        ('kind = "files"\noptions = { foldr = "x" }', "sink a: options of files: "),
        ('kind = "filez"', "sink a: kind = 'filez': known are "),
        ('kind = "kafka"\noptions = { brokers = "b:1", id = "x", format = "avro" }', "registry"),
    ],
)
def test_config_check_knows_the_options_of_a_sink(tmp_path: Path, sink: str, problem: str) -> None:
    file = tmp_path / "sink.toml"
    head = 'data_dir = "x"\nrelays = ["http://127.0.0.1:1"]\n[[sinks]]\nname = "a"\n'
    file.write_text(f'{head}sources = ["shop.*"]\n{sink}\n')
    result = databus("config", "check", file)
    assert result.exit_code == 1
    assert problem in result.output


def test_a_file_of_sinks_without_any_is_told_that_they_are_missing(tmp_path: Path) -> None:
    file = tmp_path / "sink.toml"
    for text in (
        'data_dir = "x"\nrelays = ["http://127.0.0.1:1"]\n',
        f'data_dir = "x"\ncoordinator = "file:{tmp_path}"\n',
        'data_dir = "x"\nrelays = ["http://127.0.0.1:1"]\n[[sink]]\nname = "a"\n',
    ):
        file.write_text(text)
        for words in (("config", "check", file), ("sink", "list", "-c", file)):
            result = databus(*words)
            assert result.exit_code == 1
            assert "sink.toml: [[sinks]] is missing" in result.output
            assert "data_dir is not a setting" not in result.output


TWO = """
data_dir = "x"
relays = ["http://127.0.0.1:1"]
[[sinks]]
name = "a"
sources = ["shop.*"]
{one}
[[sinks]]
name = "b"
sources = ["hr.*"]
{other}
"""
KAFKA = 'kind = "kafka"\noptions = {{ brokers = "{}", id = "{}" }}'


def files(folder: object) -> str:
    return f'kind = "files"\noptions = {{ folder = "{folder}" }}'


def test_two_sinks_that_would_write_to_one_place_are_refused(tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "archive")
    file = tmp_path / "sink.toml"
    for one, other, place in (
        (files("archive"), files("archive"), f"folder {tmp_path}/archive"),
        (files("archive"), files(tmp_path / "x" / ".." / "archive"), f"folder {tmp_path}/archive"),
        (files("archive"), files("link/"), f"folder {tmp_path}/archive"),
        (files(f"file://{tmp_path}/archive"), files("link"), f"folder {tmp_path}/archive"),
        (KAFKA.format("k1:1,k2:1", "x"), KAFKA.format("k2:1", "x"), "id x at k2:1"),
    ):
        file.write_text(TWO.format(one=one, other=other))
        for words in (("config", "check", file), ("sink", "run", "-c", file)):
            result = databus(*words)
            assert result.exit_code == 1
            assert f"sinks a and b have the same {place}: each needs its own" in result.output


def test_two_sinks_of_one_kind_have_places_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "sink.toml"
    for one, other in (
        (files("archive"), files("archive2")),
        (KAFKA.format("k1:1", "x"), KAFKA.format("k1:1", "y")),
        (KAFKA.format("k1:1", "x"), KAFKA.format("k2:1", "x")),
        (files("archive"), KAFKA.format("k1:1", "x")),
    ):
        file.write_text(TWO.format(one=one, other=other))
        assert databus("config", "check", file).exit_code == 0


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (files("archive"), ""),
        ('kind = "sql"\noptions = { url = "sqlite:///x.db" }', "options.exactly_once = false"),
        (
            'kind = "mongodb"\noptions = { url = "mongodb://h", exactly_once = true }',
            "options.exactly_once = false",
        ),
    ],
)
def test_too_many_lanes_are_refused_with_advice_for_this_kind(
    tmp_path: Path, kind: str, advice: str
) -> None:
    file = tmp_path / "sink.toml"
    head = 'data_dir = "x"\nrelays = ["http://127.0.0.1:1"]\n[[sinks]]\nname = "a"\n'
    file.write_text(f'{head}sources = ["shop.*"]\norder = "row"\nlanes = 2\n{kind}\n')
    said = databus("config", "check", file).output
    name = kind.split('"')[1]
    assert f"{file}: sink a: lanes = 2: {name} has one lane, because" in said
    assert said.count("sink a") == 1
    assert ("exactly_once" in said, advice in said) == (bool(advice), True)


def test_config_reference_of_one_kind_is_for_the_terminal() -> None:
    output = databus("config", "reference", "relay").output
    assert "data_dir  (path, required)\n    Rings, MaxSCN and schema store live here\n" in output
    assert 'physical_sources[].ring_bytes  (size, ≥ 65536, default "64MiB")' in output
    assert "http.port  (integer, ≥ 0, ≤ 65535, default 11115)" in output
    assert "bootstrap_servers" not in output
    assert all(len(line) <= 100 for line in output.splitlines())


def test_config_reference_finds_settings_by_a_word() -> None:
    output = databus("config", "reference", "client", "RETRIES").output
    assert "callback_retries" in output
    assert "fetch_bytes" not in output
    assert databus("config", "reference", "client", "no-such-word").exit_code == 1


@pytest.fixture
def on_the_path(tmp_path: Path) -> dict[str, str]:
    """An environment in which `databus` is the one under test."""
    script = tmp_path / "databus"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m databus.cli.main "$@"\n')
    script.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    return child_environment() | {"PATH": path}


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["ch"], "checkpoint"),
        (["checkpoint", "s"], "set show"),
        (["config", "reference", "cl"], "client"),
        (["top", "--on"], "--once"),
        (["completion", ""], "bash zsh fish"),
        (["spark", "ver"], "verify"),
    ],
)
def test_bash_completes_what_is_typed(
    on_the_path: dict[str, str], typed: list[str], offered: str
) -> None:
    script = (
        'eval "$(databus completion bash)"\n'
        f"COMP_WORDS=(databus {' '.join(word or repr('') for word in typed)})\n"
        f"COMP_CWORD={len(typed)}\n"
        "_databus_completion databus\n"
        'echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env=on_the_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == (offered, "")


@pytest.mark.parametrize(
    ("shell", "text"), [("zsh", "#compdef databus"), ("fish", "complete --no-files")]
)
def test_other_shells_have_a_script_too(shell: str, text: str) -> None:
    result = databus("completion", shell)
    assert text in result.output
    assert "_DATABUS_COMPLETE" in result.output


def test_completing_a_name_imports_no_command() -> None:
    (found,) = main.shell_complete(click.Context(main), "che")
    assert (found.value, found.help) == ("checkpoint", COMMANDS["checkpoint"].help)
    assert main.shell_complete(click.Context(main), "--vers")[0].value == "--version"


@pytest.mark.parametrize("command", ["check", "reference"])
def test_each_config_command_has_help_with_an_example(command: str) -> None:
    result = databus("config", command, "--help")
    assert f"Example: `databus config {command}" in result.output
