"""Sinks by name: the built-in ones, those of other packages, and `module:Class` of an application.

Another package publishes a sink as an entry point of the group `databus.sinks`, under its name:

    [project.entry-points."databus.sinks"]
    pulsar = "databus_pulsar:PulsarSink"

The class is called with the options of the settings file as keywords. If it has a class attribute
`Options`, a subclass of `databus.conf.model.Settings`, the options are checked by it, and the class
is called with one such object.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from inspect import signature
from pathlib import Path
from typing import Any

from databus.client.sinks.contract import Sink
from databus.conf.loading import build_settings
from databus.conf.model import Settings
from databus.schemas.errors import SettingsError

GROUP = "databus.sinks"
_READY = "databus.client.sinks.ready"
# Loaded when they are named: not everybody has what each needs.
BUILT_IN = (
    EntryPoint("clickhouse", f"{_READY}.clickhouse.sink:ClickHouseSink", GROUP),
    EntryPoint("elasticsearch", f"{_READY}.search.sink:SearchSink", GROUP),
    EntryPoint("files", f"{_READY}.files:FilesSink", GROUP),
    EntryPoint("kafka", f"{_READY}.kafka:KafkaSink", GROUP),
    EntryPoint("mongodb", f"{_READY}.mongodb.sink:MongoSink", GROUP),
    EntryPoint("opensearch", f"{_READY}.search.sink:SearchSink", GROUP),
    EntryPoint("print", f"{_READY}.printing:PrintSink", GROUP),
    EntryPoint("sql", f"{_READY}.sql.sink:SqlSink", GROUP),
    EntryPoint("redis", f"{_READY}.redis.sink:RedisSink", GROUP),
    EntryPoint("webhook", f"{_READY}.webhook:WebhookSink", GROUP),
)
_METHODS = ("open", "write", "flush", "close")

MakeSink = Callable[[], Sink]


def sink_maker(kind: str, options: Mapping[str, Any], file: Path | None = None) -> MakeSink:
    """Return what makes a sink: each lane calls it. Paths in options are relative to `file`.

    Raises SettingsError for an unknown kind, a class that is no sink, and wrong options.
    """
    found = _load(kind)
    missing = [name for name in _METHODS if not callable(getattr(found, name, None))]
    if not isinstance(found, type) or missing:
        shown = f"lacks {', '.join(missing)}" if missing else "is not a class"
        raise SettingsError(f"kind = {kind!r}: {shown}, and a sink is a class with {_METHODS}")
    model = getattr(found, "Options", None)
    if isinstance(model, type) and issubclass(model, Settings):
        return partial(found, build_settings(dict(options), model, f"options of {kind}", file))
    try:
        signature(found).bind(**options)
    except TypeError as error:
        raise SettingsError(f"options of {kind}: {error}") from None
    return partial(found, **options)


def says(make: Callable[[], Sink], name: str) -> bool:
    """Return what a sink says of itself: its options, which may know better, or its class."""
    places = (*_options(make), getattr(make, "func", make))
    return bool(next((getattr(one, name) for one in places if hasattr(one, name)), False))


def has_option(make: Callable[[], Sink], name: str) -> bool:
    """Return whether a sink has an option, whether or not it was given."""
    return any(name in type(one).model_fields for one in _options(make))


def own_places(make: Callable[[], Sink]) -> frozenset[str]:
    """Return where no other sink of a file may write, in words: its options may say it."""
    found: list[object] = [getattr(one, "own_places", None) for one in _options(make)]
    return frozenset().union(*(one for one in found if isinstance(one, frozenset)))


def _options(make: Callable[[], Sink]) -> list[Settings]:
    return [one for one in getattr(make, "args", ()) if isinstance(one, Settings)]


def _load(kind: str) -> Any:
    if ":" in kind:
        # An installed command does not have the working directory on its path.
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        entry = EntryPoint(kind, kind, GROUP)
    else:
        entry = _published(kind)
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise SettingsError(f"kind = {kind!r}: {error}") from error
    except MemoryError:
        raise
    except Exception as error:  # whatever its module does when it is imported
        raise SettingsError(f"kind = {kind!r}: it cannot be imported: {error!r}") from error


def _published(kind: str) -> EntryPoint:
    # Built-in kinds first: an installed package cannot replace one of them.
    found = [entry for entry in BUILT_IN if entry.name == kind]
    found = found or list(entry_points(group=GROUP, name=kind))
    if not found:
        names = sorted({one.name for one in (*BUILT_IN, *entry_points(group=GROUP))})
        raise SettingsError(f"kind = {kind!r}: known are {', '.join(names)}, and module:Class")
    if len(found) > 1:
        values = ", ".join(f"{one.value}" for one in found)
        raise SettingsError(f"kind = {kind!r}: several packages publish it: {values}")
    return found[0]
