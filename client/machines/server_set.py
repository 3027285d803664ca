"""Which relays and bootstrap servers there are, as a machine.

A change while a request is in flight takes effect when the request ends: an
answer that is half here is worth more than a new server a moment sooner.
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
    """The root of what the server set machine takes."""


@dataclass(frozen=True, slots=True)
class AddRelay(ServerSetChangeMessage):
    """There is one relay more."""

    url: str


@dataclass(frozen=True, slots=True)
class RemoveRelay(ServerSetChangeMessage):
    """There is one relay less."""

    url: str


@dataclass(frozen=True, slots=True)
class ReplaceServers(ServerSetChangeMessage):
    """These are all the servers; `must_pick_again` even if the present one is among them."""

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
    """The instruction: tell the connection that these are the servers from now on."""

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
        """Where it is."""
        return self._machine.state

    def handle(self, message: ServerSetChangeMessage) -> list[TakeServers]:
        """Take one message, return what must be done now."""
        match message:
            case BeginRequest():
                self._machine.fire("begin_request")
                return []
            case EndRequest():
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
        return self.servers != before or self._must_pick_again

    def _take(self) -> list[TakeServers]:
        must_pick_again, self._must_pick_again = self._must_pick_again, False
        return [TakeServers(self.servers, must_pick_again)]
