"""Checks the application's arguments: settings, sources, filters, schemas or a plain function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from databus.client.consumer import Consumer, DataEvent, Result
from databus.client.subscription import Subscription
from databus.conf.loading import build_settings
from databus.conf.settings import ClientSettings
from databus.schemas.errors import SettingsError
from databus.schemas.filters import EventFilter

EventCallback = Callable[[DataEvent], Result | None]


class FunctionConsumer(Consumer):
    """A consumer that calls one function per event."""

    def __init__(self, function: EventCallback) -> None:
        if inspect.iscoroutinefunction(function):
            raise SettingsError(
                f"{function.__qualname__} is a coroutine function; callbacks are plain functions: "
                "use `async for window in client.windows_async(…)`"
            )
        # The attribute hides the method, which saves a call on the hot path.
        self.on_data_event = function  # type: ignore[method-assign, assignment]


def make_subscription(
    sources: Sequence[str],
    filters: Mapping[str, EventFilter] | None = None,
    reader_schemas: Mapping[str, str] | None = None,
    name: str = "default",
) -> Subscription:
    """Return a checked subscription; raise SettingsError."""
    if isinstance(sources, str) or not sources:
        raise SettingsError(f"sources = {sources!r}: give a list of at least one source name")
    if len(set(sources)) != len(sources):
        raise SettingsError(f"sources = {', '.join(sources)}: a source is named twice")
    for by_source in (filters or {}, reader_schemas or {}):
        for source in by_source:
            if source not in sources:
                raise SettingsError(f"{source!r} has a filter or schema but is not among sources")
    return Subscription(tuple(sources), name, dict(filters or {}), dict(reader_schemas or {}))


def settings_of(
    settings: ClientSettings | None, relays: Sequence[str], options: Mapping[str, Any]
) -> ClientSettings:
    """Return the given settings, or settings built from `options`; raise SettingsError."""
    if settings is None:
        return build_settings({"relays": tuple(relays), **options}, ClientSettings)
    if relays or options:
        raise SettingsError("give either settings or their keys, not both")
    return settings
