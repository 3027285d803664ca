"""What the capturing process tells the serving processes of the state of its physical sources.

Each change is counted in the shared page at once, on the thread that makes it and before a window
that depends on it can be read. What it is is told a little later. In between, a serving process
knows that it does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from databus.registry.version import StoredVersion
from databus.relay.physical_source import PhysicalSource
from databus.relay.relay import Relay
from databus.relay.serving_processes.messages import SourceState, State
from databus.relay.serving_processes.shared_page import SharedPage
from databus.schemas.errors import UnusableSourceError


class StateTeller:
    """The state of one relay's sources. On the loop's thread, but for what it hooks into."""

    def __init__(self, relay: Relay, page: SharedPage) -> None:
        self._relay, self._page = relay, page
        names = [one.name for one in relay.settings.physical_sources]
        self._numbers = {name: names.index(name) for name in relay.physical_sources}
        self._told: dict[str, SourceState] = {}
        self._versions: tuple[StoredVersion, ...] = ()

    def start(self, tell: Callable[[], None], wake: Callable[[], None]) -> None:
        """Count changes from now on; `tell` and `wake` are called on any thread."""
        for name, source in self._relay.physical_sources.items():
            changed = partial(self._change, self._numbers[name], tell, wake)
            source.spans.on_change = changed
            source.capture.servers.table.on_change = changed
            source.notifier.on_news = wake

    def stop(self) -> None:
        """Count nothing any more."""
        for source in self._relay.physical_sources.values():
            source.spans.on_change = _nothing
            source.capture.servers.table.on_change = None
            source.notifier.on_news = None

    def whole(self) -> State:
        """Return all that was told so far, for a new process."""
        return State(self._told, self._versions)

    def changed(self) -> State | None:
        """Return what has changed since the last call; None if nothing has."""
        found: dict[str, SourceState] = {}
        for name, source in self._relay.physical_sources.items():
            number = self._numbers[name]
            before, now = self._told.get(name), self._state(name, source)
            if before is not None and before != now and before.revision == now.revision:
                # A change that nobody has counted, for example what other relays say.
                revision = self._page.change(number)
                if revision != now.revision + 1:
                    continue  # another one came meanwhile, and is told next
                now = replace(now, revision=revision)
            if before != now:
                found[name] = now
        self._told |= found
        versions = self._all_versions()
        is_new, self._versions = versions != self._versions, versions
        if not found and not is_new:
            return None
        return State(found, versions if is_new else None)

    def _change(self, number: int, tell: Callable[[], None], wake: Callable[[], None]) -> None:
        self._page.change(number)
        tell()
        wake()

    def _state(self, name: str, source: PhysicalSource) -> SourceState:
        # The revision first: what is found later is of it, or newer.
        revision = self._page.revision(self._numbers[name])
        is_served = False
        with suppress(UnusableSourceError):
            source.check_served()
            is_served = True
        servers = source.capture.servers
        damages = self._relay.ring_watch.watched[name].damages
        return SourceState(
            revision,
            is_served,
            source.spans.content,
            servers.table.epochs,
            () if servers.peers is None else tuple(servers.peers.passed()),
            max((damage.end for damage, _ in damages), default=0),
        )

    def _all_versions(self) -> tuple[StoredVersion, ...]:
        registry = self._relay.registry
        return tuple(
            StoredVersion(one.source, one.version, one.text, one.start_scn)
            for name in registry.sources()
            for one in registry.versions(name)
        )


def _nothing() -> None:
    """Tell nobody."""
