"""What a settings file names and cannot work, found without a connection to anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from databus.conf.settings import (
    BootstrapSettings,
    ClientSettings,
    PhysicalSourceSettings,
    RelaySettings,
    Settings,
)
from databus.conf.sink_settings import SinksSettings
from databus.daemon.tls import client_context, server_context
from databus.daemon.tokens import make_access, read_token
from databus.relay.log.archive.store import ArchiveStore
from databus.relay.sources.column_rules import ColumnRules
from databus.relay.sources.kind import open_scan, open_source
from databus.schemas.errors import SettingsError


def check_what_is_named(settings: Settings) -> None:
    """Raise SettingsError for the first thing that the daemon would fail with at its start."""
    for problem in path_problems(settings):
        raise SettingsError(problem)
    if isinstance(settings, RelaySettings | BootstrapSettings):
        make_access(settings.http)
        server_context(settings.http)
        for source in settings.physical_sources:
            try:
                _check_source(source, is_captured=isinstance(settings, RelaySettings))
            except SettingsError as error:
                # Kinds name the source where they know more than its settings.
                where = f"physical source {source.name}: "
                raise SettingsError(where + str(error).removeprefix(where)) from error
    named = {BootstrapSettings: "relay_access", ClientSettings: "access", SinksSettings: "access"}
    access = named.get(type(settings))
    if access is not None:
        read_token(getattr(settings, access))
        client_context(getattr(settings, access).tls_ca)


def path_problems(settings: BaseModel, place: str = "") -> Iterator[str]:
    """Yield which files of settings are missing, and which folders are none."""
    for key, value in _values(settings, place):
        if isinstance(value, BaseModel):
            yield from path_problems(value, f"{key}.")
        elif isinstance(value, Path):
            problem = _path_problem(key.rpartition(".")[2], value)
            if problem:
                yield f"{key} = {str(value)!r}: {problem}"


def _values(settings: BaseModel, place: str) -> Iterator[tuple[str, Any]]:
    """Yield the keys of settings and their values, those of lists one by one."""
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, tuple):
            yield from ((f"{place}{name}.{index}", one) for index, one in enumerate(value))
        else:
            yield f"{place}{name}", value


def _path_problem(name: str, path: Path) -> str:
    if name == "dead_letters":
        return ""  # made with the first one
    if not name.endswith("dir"):
        return "" if path.is_file() else "there is no such file"
    # A folder is made where it is missing, but for that of schemas, which somebody writes.
    if name == "schema_dir":
        return "" if path.is_dir() else "there is no such folder"
    there = next(one for one in (path, *path.absolute().parents) if one.exists())
    return "" if there.is_dir() else f"{there} is a file, not a folder"


def _check_source(source: PhysicalSourceSettings, *, is_captured: bool) -> None:
    """Raise SettingsError for a source that its kind, or an archive, does not take."""
    ColumnRules.of(source)
    if not is_captured:
        open_scan(source).close()
        return
    for uri in source.uris:
        open_source(source.at(uri)).close()
    if source.log is not None and source.log.archive is not None:
        ArchiveStore(source.log.archive).close()
