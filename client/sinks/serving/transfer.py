"""All sinks of a settings file with their positions as one file, to move them to another machine.

It has the text of the settings file, and what is in `data_dir`: positions, and who is paused. What
those name, such as files with passwords, is not in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from databus.client.sinks.serving.pauses import NAME as PAUSES, PauseFile, read_pauses
from databus.client.sinks.serving.positions import (
    NAME,
    PositionFile,
    StoredPosition,
    decoded,
    encoded,
    hold,
    read_positions,
)
from databus.conf.sink_settings import SinksSettings
from databus.daemon.files import make_folder, replace_file
from databus.schemas.errors import CheckpointError, SettingsError

_VERSION = 1


class Exported(NamedTuple):
    """What a file of `export` has."""

    settings: str  # the text of the settings file
    positions: Mapping[tuple[str, str], StoredPosition]
    paused: frozenset[str]


def export_sinks(file: Path, config: Path, settings: SinksSettings) -> Exported:
    """Write a private file; it is not there yet. Raises SettingsError and CheckpointError."""
    found = Exported(
        config.read_text(encoding="utf-8"),
        read_positions(settings.data_dir / NAME),
        read_pauses(settings.data_dir / PAUSES),
    )
    values = {
        "databusSinks": _VERSION,
        "settings": found.settings,
        "positions": json.loads(encoded(found.positions)),
        "paused": sorted(found.paused),
    }
    if file.exists():
        raise SettingsError(f"{file} is there already: name another file, or remove it")
    try:
        replace_file(file, (json.dumps(values, indent=1) + "\n").encode())
    except OSError as error:
        raise SettingsError(f"{file} cannot be written: {error}") from error
    return found


def read_exported(file: Path) -> Exported:
    """Return what a file of `export` has; raise CheckpointError for any other file."""
    try:
        values: dict[str, Any] = json.loads(file.read_bytes())
        if values["databusSinks"] != _VERSION:
            raise ValueError(f"it is of version {values['databusSinks']}, and not {_VERSION}")
        positions = decoded(json.dumps(values["positions"]).encode())
        return Exported(str(values["settings"]), positions, frozenset(map(str, values["paused"])))
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(
            f"{file} is no file of `databus sink export`, or is damaged: {error!r}"
        ) from error


def import_sinks(found: Exported, settings: SinksSettings, *, must_replace: bool = False) -> None:
    """Take positions and pauses, in one step each, while no process runs the sinks.

    Raises SettingsError for a sink that the settings do not have, and for one that has a position,
    unless that is to be replaced; CheckpointError if a process runs. Then nothing is changed.
    """
    names = {sink for sink, _ in found.positions} | found.paused
    if missing := sorted(names - {one.name for one in settings.sinks}):
        raise SettingsError(f"the settings have no sink {', '.join(missing)}: add it first")
    make_folder(settings.data_dir)
    let_go = hold(settings.data_dir)
    try:
        positions = PositionFile(settings.data_dir)
        have = sorted({one.sink for one in positions.all()} & names)
        if have and not must_replace:
            raise SettingsError(
                f"{', '.join(have)} has a position in {settings.data_dir}: import with --replace "
                "to put the one of the file in its place"
            )
        positions.replace(names, found.positions)
        pauses = PauseFile(settings.data_dir)
        for name in found.paused:
            pauses.set(name, is_paused=True)
    finally:
        let_go()
