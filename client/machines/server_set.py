"""The machine for the set of relays and bootstrap servers.

A change while a request is in flight takes effect when the request ends: the rest of an
answer that is arriving is worth more than a new server a moment sooner.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from databus.client.machines.states import SERVER_SET, ServerSet, StateMachine


@dataclass(frozen=True, slots=True)
class Servers:
    """The URLs of the relays and of the bootstrap servers."""

    relays: tuple[str, ...]
    bootstraps: tuple[str, ...] = ()


class ServerSetChangeMessage:
    """Base class of the messages to the server set machine."""


@dataclass(frozen=True, slots=True)
class AddRelay(ServerSetChangeMessage):
    """Add one relay."""

    url: str


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
            case AddRelay(url) if url not in before.relays:
                self.servers = replace(before, relays=(*before.relays, url))
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
