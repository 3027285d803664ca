"""The machine for the set of relays and bootstrap servers.

A change while a request is in flight takes effect when the request ends: the rest of an
answer that is arriving is worth more than a new server a moment sooner.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from databus.client.machines.server_rotation import Rank
from databus.client.machines.states import SERVER_SET, ServerSet, StateMachine
from databus.servers.entry import ServerEntry


@dataclass(frozen=True, slots=True)
class Servers:
    """The URLs of the relays and of the bootstrap servers.

    `entries` has what those say that were found, by URL; `found_at` is where they were looked for,
    "" where the settings name them. `room` is the client's.
    """

    relays: tuple[str, ...]
    bootstraps: tuple[str, ...] = ()
    entries: dict[str, ServerEntry] = field(default_factory=dict)
    found_at: str = ""
    room: str = ""

    def of_sources(self, sources: tuple[str, ...]) -> Servers:
        """Return those that have all of the sources, or of which it is not known."""
        relays = tuple(url for url in self.relays if self._has_all(url, sources))
        bootstraps = tuple(url for url in self.bootstraps if self._has_all(url, sources))
        return replace(self, relays=relays, bootstraps=bootstraps)

    def ranks(self, sources: tuple[str, ...] = (), scn: int = -1) -> dict[str, Rank]:
        """Return the rank of each server that was found, the least for the one to read from first.

        First those that hold everything of the sources after an SCN, then those of the client's
        room, then those with less than half of the others' connections. Not the least loaded at
        once: all clients of a server that ends would choose the same.
        """
        return {
            url: (
                -1 < scn < entry.oldest_scn(sources),
                entry.room != self.room,
                entry.connections.bit_length(),
            )
            for url, entry in self.entries.items()
        }

    def _has_all(self, url: str, sources: tuple[str, ...]) -> bool:
        entry = self.entries.get(url)
        return entry is None or entry.has_all(sources)


def found_servers(
    entries: Iterable[ServerEntry], found_at: str, room: str, bootstraps: tuple[str, ...]
) -> Servers:
    """Return the servers that were found, and bootstrap servers that the settings name."""
    by_url = {entry.url: entry for entry in entries}
    relays = tuple(url for url, entry in by_url.items() if entry.kind == "relay")
    found = (url for url, entry in by_url.items() if entry.kind == "bootstrap")
    named = tuple(dict.fromkeys((*bootstraps, *found)))
    return Servers(relays, named, by_url, found_at, room)


def changes(
    before: Servers, after: Servers, *, must_pick_again: bool = False
) -> list[ServerSetChangeMessage]:
    """Return the messages that make a set of servers another one."""
    added: list[ServerSetChangeMessage] = [
        AddRelay(url, after.entries.get(url)) for url in after.relays if url not in before.relays
    ]
    removed = [RemoveRelay(url) for url in before.relays if url not in after.relays]
    # The rest: bootstrap servers, and what servers say of themselves.
    return [*added, *removed, ReplaceServers(after, must_pick_again)]


class ServerSetChangeMessage:
    """Base class of the messages to the server set machine."""


@dataclass(frozen=True, slots=True)
class AddRelay(ServerSetChangeMessage):
    """Add one relay, with what it says of itself if it was found."""

    url: str
    entry: ServerEntry | None = None


@dataclass(frozen=True, slots=True)
class RemoveRelay(ServerSetChangeMessage):
    """Remove one relay."""

    url: str


@dataclass(frozen=True, slots=True)
class ReplaceServers(ServerSetChangeMessage):
    """Replace all servers; `must_pick_again` even if the current one is among them."""

    servers: Servers
    must_pick_again: bool = False


@dataclass(frozen=True, slots=True)
class BeginRequest(ServerSetChangeMessage):
    """A request was sent to one of the servers."""


@dataclass(frozen=True, slots=True)
class EndRequest(ServerSetChangeMessage):
    """The request has succeeded or failed."""


@dataclass(frozen=True, slots=True)
class TakeServers:
    """The instruction: the connection uses these servers from now on."""

    servers: Servers
    must_pick_again: bool


class ServerSetMachine:
    """The servers of one connection. Not thread-safe."""

    def __init__(self, servers: Servers) -> None:
        self._machine = StateMachine(ServerSet.IDLE, SERVER_SET)
        self._must_pick_again = False
        self.servers = servers

    @property
    def state(self) -> ServerSet:
        """Current state."""
        return self._machine.state

    def handle(self, message: ServerSetChangeMessage) -> list[TakeServers]:
        """Handle one message; return the instructions."""
        match message:
            case BeginRequest():
                self._machine.fire("begin_request")
                return []
            case EndRequest():
                # Read before the transition, which leads back to IDLE.
                was_changed = self.state is ServerSet.CHANGED
                self._machine.fire("end_request")
                return self._take() if was_changed else []
        if not self._change(message):
            return []
        self._machine.fire("change")
        return self._take() if self.state is ServerSet.IDLE else []

    def _change(self, message: ServerSetChangeMessage) -> bool:
        before = self.servers
        match message:
            case AddRelay(url, entry) if url not in before.relays:
                known = before.entries if entry is None else before.entries | {url: entry}
                self.servers = replace(before, relays=(*before.relays, url), entries=known)
            case RemoveRelay(url):
                self.servers = replace(before, relays=tuple(r for r in before.relays if r != url))
            case ReplaceServers(servers, must_pick_again):
                self.servers = servers
                self._must_pick_again |= must_pick_again
        # The same set again is no change, unless another server must be picked.
        return self.servers != before or self._must_pick_again

    def _take(self) -> list[TakeServers]:
        must_pick_again, self._must_pick_again = self._must_pick_again, False
        return [TakeServers(self.servers, must_pick_again)]
