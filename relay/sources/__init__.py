"""Physical sources: what a relay reads changes from. One module a kind of database."""

from __future__ import annotations

from importlib import import_module

from databus.conf.settings import PhysicalSourceSettings
from databus.relay.sources.source import Source
from databus.relay.sources.uri import parse_uri
from databus.schemas.errors import SettingsError

# Names, not imports: a relay of SQLite files must not pay for loading PyMySQL.
SOURCES = {
    "generator": "databus.relay.sources.generator:GeneratorSource",
    "mysql": "databus.relay.sources.mysql:MysqlSource",
    "sqlite": "databus.relay.sources.sqlite:SqliteSource",
}


def open_source(settings: PhysicalSourceSettings) -> Source:
    """Return the source that the URI's scheme names; it is not connected yet.

    Raises SettingsError for an unknown scheme or a setting it cannot take.
    """
    scheme = parse_uri(settings.uri).scheme
    if scheme not in SOURCES:
        raise SettingsError(
            f"uri = {settings.uri!r}: the scheme must be one of {', '.join(SOURCES)}"
        )
    module, _, name = SOURCES[scheme].partition(":")
    source: Source = getattr(import_module(module), name)(settings)
    return source
