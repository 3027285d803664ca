"""docs/deploy: settings that are good, units that parse, an image and a compose file that agree."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from databus.cli.main import main
from databus.conf.loading import load_settings
from databus.conf.reference import PAGES
from tests import PATIENCE_S
from tools.repository import ROOT

DEPLOY = ROOT / "docs" / "deploy"
KINDS = ("relay", "bootstrap", "client")
UNITS = (*KINDS, "run")  # and `databus run`, with a relay's settings
COMPOSE: Any = yaml.safe_load((DEPLOY / "compose-tls.yaml").read_text())
IMAGE = (DEPLOY / "Containerfile").read_text()


class _Unit(ConfigParser):
    """A unit file: keys may be there several times, and mean what they say."""

    def __init__(self, path: Path) -> None:
        super().__init__(strict=False, interpolation=None, delimiters=("=",))
        self.read(path)
        self.credentials = re.findall(r"^LoadCredential=([^:]+):", path.read_text(), re.M)

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def unit(kind: str) -> _Unit:
    return _Unit(DEPLOY / f"databus-{kind}.service")


def paths_of(settings: Any) -> set[str]:
    """Return every absolute path that settings name."""
    if isinstance(settings, dict):
        return set().union(*map(paths_of, settings.values()))
    if isinstance(settings, list):
        return set().union(*map(paths_of, settings))
    return {settings} if isinstance(settings, str) and settings.startswith("/") else set()


def named_paths(kind: str) -> set[str]:
    return paths_of(tomllib.loads((DEPLOY / f"{kind}.toml").read_text()))


def parse(words: list[str]) -> None:
    """Parse a command line of `databus`, without running it; raises click's errors."""
    command: click.Command = main
    context = click.Context(main)
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(context, words)
        assert name
        assert found
        context, command = click.Context(found, parent=context), found
    command.make_context("databus", words)


@pytest.mark.parametrize("kind", UNITS)
def test_the_settings_are_good_and_safe(kind: str) -> None:
    settings: Any = load_settings(
        DEPLOY / f"{kind}.toml", PAGES[{"run": "relay"}.get(kind, kind)][0]
    )
    assert settings.log_format == "json"
    if kind == "client":
        assert settings.access.token_file
        assert all(url.startswith("https://") for url in settings.relays)
    else:
        assert settings.http.has_tokens
        assert settings.http.tls_cert
        assert all(physical.tls_ca for physical in settings.physical_sources)


@pytest.mark.parametrize("kind", UNITS)
def test_a_unit_runs_a_command_that_there_is_with_its_settings(kind: str) -> None:
    program, *words = shlex.split(unit(kind)["Service"]["ExecStart"])
    assert program == "/opt/databus/bin/databus"
    assert f"/etc/databus/{kind}.toml" in words
    parse(words)


@pytest.mark.parametrize("kind", UNITS)
def test_a_unit_gives_what_its_settings_name_and_may_write_there_alone(kind: str) -> None:
    credentials = f"/run/credentials/databus-{kind}.service/"
    named = {path for path in named_paths(kind) if path.startswith("/run/")}
    assert named == {credentials + name for name in unit(kind).credentials}
    service = unit(kind)["Service"]
    state = f"/var/lib/{service['StateDirectory']}"
    written = {path for path in named_paths(kind) if path.startswith("/var/")}
    assert all(path == state or path.startswith(f"{state}/") for path in written)
    assert service["ProtectSystem"] == "strict"
    assert service["DynamicUser"] == service["NoNewPrivileges"] == "yes"


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        assert all(unit(kind).sections() == ["Unit", "Service", "Install"] for kind in UNITS)
        return
    copies = []
    for kind in UNITS:
        text = (DEPLOY / f"databus-{kind}.service").read_text()
        copies.append(tmp_path / f"databus-{kind}.service")
        # Only a program that is there is taken.
        copies[-1].write_text(text.replace("/opt/databus/bin/databus", sys.executable))
    outcome = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, copies)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    ours = [line for line in outcome.stderr.splitlines() if "databus-" in line]
    assert (outcome.returncode, ours) == (0, [])


def test_the_image_has_the_whole_package() -> None:
    roots = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {
        "tests",
        "tools",
        "benchmarks",
        "examples",
    }
    files = {"pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"}
    lines = re.findall(r"^COPY (?!--)(.+)$", IMAGE, re.M)
    listed = {word for line in lines for word in line.split()[:-1]}
    assert listed == roots | files
    assert all((ROOT / name).exists() for name in listed)


def test_the_image_runs_the_command_as_nobody_special() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (program,) = re.findall(r'^ENTRYPOINT \["/opt/databus/bin/(\w+)"\]$', IMAGE, re.M)
    assert program in project["scripts"]
    python = tuple(map(int, re.findall(r"python:(\d+)\.(\d+)", IMAGE)[0]))
    least = tuple(map(int, re.findall(r"(\d+)\.(\d+)", project["requires-python"])[0]))
    assert python >= least
    (user,) = re.findall(r"^USER (\d+)$", IMAGE, re.M)
    assert int(user) > 0
    (default,) = re.findall(r"^CMD (\[.+\])$", IMAGE, re.M)
    parse(yaml.safe_load(default))


@pytest.mark.parametrize("kind", KINDS)
def test_a_container_has_what_its_settings_name(kind: str) -> None:
    service = COMPOSE["services"][kind]
    parse(service["command"])
    assert service["read_only"] is True
    mounts = dict(reversed(volume.split(":")[:2]) for volume in service["volumes"])
    assert mounts[f"/etc/databus/{kind}.toml"] == f"./{kind}.toml"
    for path in named_paths(kind):
        assert any(path == mount or path.startswith(f"{mount}/") for mount in mounts), path
    names = {
        alias
        for one in COMPOSE["services"].values()
        for alias in one.get("networks", {}).get("default", {}).get("aliases", [])
    }
    text = (DEPLOY / f"{kind}.toml").read_text()
    assert set(re.findall(r"https://([a-z.]+):", text)) <= names


def test_a_relay_container_is_asked_whether_it_is_ready() -> None:
    *_, script = COMPOSE["services"]["relay"]["healthcheck"]["test"]
    compile(script, "healthcheck", "exec")
    assert "/ready" in script
