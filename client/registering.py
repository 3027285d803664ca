"""Checks the application's arguments: settings, sources, filters, schemas or a plain function."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from databus.client.checkpoints.store import CheckpointStore, FileCheckpoints, MemoryCheckpoints
from databus.client.consumer import Consumer, Result
from databus.client.dispatcher.session import row_conditions
from databus.client.subscription import Subscription
from databus.conf.loading import build_settings
from databus.conf.settings import ClientSettings
from databus.schemas.errors import SettingsError
from databus.schemas.filters import EventFilter

# Takes a `DataEvent`, or the events of a run: see `DatabusClient.on`. Or a coroutine function.
Function = TypeVar("Function", bound=Callable[..., Result | Awaitable[Result | None] | None])


class FunctionConsumer(Consumer):
    """A consumer that calls one function per event, or per run of events."""

    def __init__(self, function: Callable[..., Any], *, takes_runs: bool = False) -> None:
        # The attribute hides the method, which saves a call on the hot path.
        if takes_runs:
            self.on_data_events = function  # type: ignore[method-assign]
        else:
            self.on_data_event = function  # type: ignore[method-assign]


def checked_function(function: Function) -> Function:
    """Return a function that can be called with one argument; raise SettingsError for another."""
    try:
        inspect.signature(function).bind(None)
    except ValueError:
        pass  # a function in C that does not say
    except TypeError as error:
        name = getattr(function, "__qualname__", repr(function))
        text = f"{name} is called with one argument, the event, or the events of a run: {error}"
        raise SettingsError(text) from None
    return function


def checked_consumers(given: Consumer | Iterable[Consumer]) -> list[Consumer]:
    """Return the consumers as a list; raise SettingsError for what is none."""
    if isinstance(given, type):
        raise SettingsError(f"{given.__name__} is a class: give a consumer, {given.__name__}()")
    consumers = [given] if isinstance(given, Consumer) else list(given)
    for one in consumers:
        if not isinstance(one, Consumer):
            raise SettingsError(f"{one!r} is no Consumer: a function is registered by `on`")
    return consumers


def make_subscription(
    sources: Sequence[str],
    filters: Mapping[str, EventFilter | str] | None = None,
    reader_schemas: Mapping[str, str] | None = None,
    name: str = "default",
    batch_rows: int = 0,
    *,
    auto_commit: bool = True,
    on_failure: str | Callable[..., Any] = "stop",
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
    if batch_rows < 0:
        raise SettingsError(f"batch_rows = {batch_rows}: give 0 or a number of rows")
    if not callable(on_failure) and on_failure not in ("stop", "skip"):
        raise SettingsError(f"on_failure = {on_failure!r}: give 'stop', 'skip' or a function")
    texts = {source: one for source, one in (filters or {}).items() if isinstance(one, str)}
    row_conditions(texts)  # what is not understood is refused here
    return Subscription(
        tuple(sources),
        name,
        {source: one for source, one in (filters or {}).items() if not isinstance(one, str)},
        dict(reader_schemas or {}),
        batch_rows,
        conditions=texts,
        auto_commit=auto_commit,
        on_failure=on_failure,
    )


def settings_of(
    settings: ClientSettings | None, relays: str | Sequence[str], options: Mapping[str, Any]
) -> ClientSettings:
    """Return the given settings, or settings built from `options`; raise SettingsError.

    One URL is a list of one.
    """
    if settings is None:
        given = {"relays": relays, **options}
        for key in ("relays", "bootstrap_servers"):
            urls = given.get(key, ())
            given[key] = (urls,) if isinstance(urls, str) else tuple(urls)
        return build_settings(given, ClientSettings)
    if relays or options:
        raise SettingsError("give either settings or their keys, not both")
    return settings


def check_same(known: Subscription, wanted: Subscription) -> None:
    """Raise SettingsError if a registration exists that reads otherwise."""
    if known != wanted:
        raise SettingsError(
            f"registration {wanted.name!r} of {', '.join(wanted.sources)} exists with other "
            "filters, schemas, batch_rows or on_failure; use another name"
        )


def in_use(subscription: Subscription) -> SettingsError:
    """Return the error of a second reader of one registration."""
    return SettingsError(
        f"registration {subscription.name!r} of {', '.join(subscription.sources)} is already being "
        "read; use another name"
    )


def make_store(directory: Path | None) -> CheckpointStore:
    """Return the store of a `checkpoint_dir`."""
    return MemoryCheckpoints() if directory is None else FileCheckpoints(directory)
