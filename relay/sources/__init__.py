"""Physical sources: what a relay reads changes from. One module a kind of database."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from databus.conf.settings import PhysicalSourceSettings
from databus.relay.sources.log_status import LogLook
from databus.relay.sources.source import Source
from databus.relay.sources.uri import parse_uri
from databus.schemas.errors import SettingsError

# Names, not imports: a relay of SQLite files must not pay for loading PyMySQL.
SOURCES = {
    "generator": "databus.relay.sources.generator:GeneratorSource",
    "mysql": "databus.relay.sources.mysql.source:MysqlSource",
    "sqlite": "databus.relay.sources.sqlite.source:SqliteSource",
}
# Those of a database that purges its log by itself.
LOG_LOOKS = {"mysql": "databus.relay.sources.mysql.server.log_probe:MysqlLogLook"}


def open_source(settings: PhysicalSourceSettings, data_dir: Path | None = None) -> Source:
    """Return the source that the URI's scheme names; it is not connected yet.

    What it must remember it keeps in `data_dir`; without one, in memory. Raises
    SettingsError for an unknown scheme or a setting it cannot take.
    """
    scheme = parse_uri(settings.uri).scheme
    if scheme not in SOURCES:
        raise SettingsError(
            f"uri = {settings.uri!r}: the scheme must be one of {', '.join(SOURCES)}"
        )
    make = _load(SOURCES[scheme])
    source: Source
    if scheme == "mysql" and data_dir is not None:
        source = make(settings, history=history_path(settings, data_dir))
    else:
        source = make(settings)
    return source


def history_path(settings: PhysicalSourceSettings, data_dir: Path) -> Path:
    """Return the file in which a source keeps the definitions of its tables over time."""
    return data_dir / f"{settings.name}.history"


def open_log_look(settings: PhysicalSourceSettings) -> LogLook | None:
    """Return what looks at the database's log; None when only the relay purges it.

    Raises SettingsError as `open_source` does.
    """
    scheme = parse_uri(settings.uri).scheme
    if scheme not in LOG_LOOKS:
        return None
    look: LogLook = _load(LOG_LOOKS[scheme])(settings)
    return look


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
