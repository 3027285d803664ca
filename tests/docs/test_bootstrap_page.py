"""docs/bootstrap.md has every command, status and error of the bootstrap server."""

from __future__ import annotations

import pytest
from click import Group

from databus.bootstrap.cli.bootstrap import bootstrap
from databus.bootstrap.server.handlers import COMMANDS
from databus.bootstrap.store.values import SourceStatus
from databus.conf.loading import load_settings
from databus.conf.settings import BootstrapSettings, ClientSettings
from databus.schemas import errors
from tests.docs.markdown import (
    block_for,
)
from tools.repository import ROOT

PAGE_PATH = ROOT / "docs" / "bootstrap.md"
PAGE = PAGE_PATH.read_text(encoding="utf-8")
ERRORS = [
    errors.BootstrapTooOldError,
    errors.BootstrapTooYoungError,
    errors.BootstrapError,
    errors.InvalidParameterError,
    errors.UnknownSourceError,
    errors.UnknownCommandError,
]


@pytest.mark.parametrize("path", [path for path, _ in COMMANDS] + ["/health", "/metrics"])
def test_every_route_is_on_the_page(path: str) -> None:
    assert f"`{path}`" in PAGE


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_is_on_the_page_with_its_status(error: type[errors.DatabusError]) -> None:
    assert f"| `{error.wire_name}` | {error.status} |" in PAGE


@pytest.mark.parametrize("status", list(SourceStatus))
def test_every_status_is_on_the_page(status: SourceStatus) -> None:
    assert f"| `{status.value}` |" in PAGE


def test_every_command_is_on_the_page() -> None:
    assert isinstance(bootstrap, Group)
    names = bootstrap.list_commands(None)  # type: ignore[arg-type]
    assert all(f"`databus bootstrap {name}`" in PAGE for name in names)


def test_the_settings_of_the_page_are_good(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("settings")
    for name, model in (("bootstrap.toml", BootstrapSettings), ("client.toml", ClientSettings)):
        file = folder / name
        file.write_text(block_for(PAGE_PATH, f"write {name}").text, encoding="utf-8")
        load_settings(file, model)
