"""What is kept of physical sources and tables that were removed while the relay ran.

Consumers have positions, and positions mean nothing in the log of another database. So a source
that was removed is only captured again from where it came from, and a physical source that was
removed begins with empty files when one of its name is added.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from databus.conf.addresses import without_password
from databus.conf.settings import PhysicalSourceSettings
from databus.daemon.files import make_folder, replace_file
from databus.relay.capture.epoch_table import EPOCHS_SUFFIX
from databus.relay.capture.overlap.overlap_search import OVERLAP_SUFFIX
from databus.relay.captured_spans import SPANS_SUFFIX
from databus.relay.catch_up.catch_ups import FOLDER_SUFFIX
from databus.relay.log.directory import log_folder
from databus.schemas.errors import SettingsError

REMOVED = "removed"  # folder of their files
REMOVED_SOURCES = "removed-sources.json"
_SUFFIXES = (".ring", ".scn", ".history", SPANS_SUFFIX, EPOCHS_SUFFIX)
_FOLDER_SUFFIXES = (FOLDER_SUFFIX, OVERLAP_SUFFIX, ".relay-log")


def put_aside(data_dir: Path, name: str) -> Path:
    """Move the files of a physical source out of the way; return their folder. Raises OSError."""
    folder = data_dir / REMOVED / f"{name}-{time.time_ns() // 1_000_000}"
    make_folder(folder)
    for path in _files_of(data_dir, name):
        path.rename(folder / path.name)
    return folder


def refuse_files_of_before(data_dir: Path, settings: PhysicalSourceSettings) -> None:
    """Raise SettingsError if a physical source to be added would find files of another one."""
    found = list(_files_of(data_dir, settings.name))
    log = log_folder(data_dir, settings)
    if settings.log is not None and log.is_dir() and any(log.iterdir()):
        found.append(log)
    if found:
        raise SettingsError(
            f"{found[0]} is of an earlier physical source {settings.name}: move the files of this "
            "name away, or choose another name"
        )


def refuse_other_database(data_dir: Path, settings: PhysicalSourceSettings) -> None:
    """Raise SettingsError for a source that was removed, and came from another database."""
    removed = _load(data_dir)
    uris = {without_password(uri) for uri in settings.uris}
    for name, table, _ in settings.named_tables:
        before = removed.get(name)
        if before is not None and uris.isdisjoint(before):
            raise SettingsError(
                f"source {name} was captured from {before[0]} until it was removed: its consumers "
                f"have positions in that log. From {min(uris)} give it another name, "
                f'{{ name = "…", table = "{table}" }}; if it is the same database at another '
                f"address, take the line of {name} out of {data_dir / REMOVED_SOURCES}"
            )


def note_removed(
    data_dir: Path, settings: PhysicalSourceSettings, sources: Collection[str]
) -> None:
    """Remember where sources came from that are captured no more; raise SettingsError."""
    uris = [without_password(uri) for uri in settings.uris]
    removed = _load(data_dir) | dict.fromkeys(sources, uris)
    text = json.dumps(removed, indent=1, sort_keys=True)
    try:
        replace_file(data_dir / REMOVED_SOURCES, text.encode())
    except OSError as error:
        raise SettingsError(f"{REMOVED_SOURCES} cannot be saved: {error}") from error


def _files_of(data_dir: Path, name: str) -> Iterator[Path]:
    paths = (data_dir / f"{name}{suffix}" for suffix in (*_SUFFIXES, *_FOLDER_SUFFIXES))
    return (path for path in paths if path.exists())


def _load(data_dir: Path) -> dict[str, list[str]]:
    try:
        found = json.loads((data_dir / REMOVED_SOURCES).read_bytes())
        return {str(name): [str(uri) for uri in uris] for name, uris in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        path = data_dir / REMOVED_SOURCES
        raise SettingsError(f"{path} cannot be read: {error}; put it back or remove it") from error
