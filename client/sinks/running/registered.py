"""Sinks of an application: `client.register_sink`."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from databus.client.checkpoints.store import CheckpointStore
from databus.client.sinks.isolated.maker import IsolatedMaker
from databus.client.sinks.loading import MakeSink, sink_maker
from databus.client.sinks.running.feed import Feed
from databus.client.sinks.running.plan import make_plan
from databus.client.sinks.running.stream import ClientStream, WindowsClient
from databus.conf.loading import build_settings
from databus.conf.sink_settings import SinkSettings
from databus.schemas.errors import SettingsError


class RegisteredSinks:
    """The sinks of one client, which starts and stops them. Thread-safe."""

    def __init__(self, client: WindowsClient, store: CheckpointStore) -> None:
        self._client, self._store = client, store
        self._lock = threading.Lock()
        self._feeds: dict[str, Feed] = {}
        self._started: set[str] = set()

    def add(
        self,
        make: MakeSink | str,
        sources: Sequence[str],
        name: str,
        options: Mapping[str, Any],
        *,
        is_running: bool,
    ) -> Feed:
        """Add a sink, and start it if the client is running; raise SettingsError."""
        kind = make if isinstance(make, str) else f"{make!r}"
        raw = {"name": name, "kind": kind, "sources": tuple(sources), **options}
        settings = build_settings(raw, SinkSettings, "register_sink")
        maker = _maker(make, settings)
        stream = ClientStream(self._client, self._store, name, sources)
        try:
            plan = make_plan(settings, maker)
        except SettingsError as error:
            raise SettingsError(f"register_sink: sink {name}: {error}") from error
        feed = Feed(plan, stream)
        with self._lock:
            if name in self._feeds:
                raise SettingsError(f"register_sink: there is a sink {name!r} already")
            self._feeds[name] = feed
        if is_running:
            self.start()
        return feed

    def start(self) -> None:
        """Start the sinks that do not run yet."""
        with self._lock:
            feeds = [name for name in self._feeds if name not in self._started]
            self._started.update(feeds)
        for name in feeds:
            self._feeds[name].start()

    def stop(self) -> None:
        """End all sinks, after a last attempt to write what they hold."""
        with self._lock:
            feeds = list(self._feeds.values())
        for feed in feeds:
            feed.stop()


def _maker(make: MakeSink | str, settings: SinkSettings) -> MakeSink:
    """Return what makes the sinks. An application has only its own: none is isolated unasked."""
    if not isinstance(make, str):
        if settings.isolate:
            raise SettingsError("register_sink: isolate is for a kind, such as module:Class")
        return make
    return IsolatedMaker(settings) if settings.isolate else sink_maker(make, settings.options)
