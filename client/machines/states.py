"""The states of the client and the transitions between them, in three tables.

`lifecycle`, `server_set` and `connection` hold the rules of each machine: they take a
message and return instructions. This file only lists the legal transitions, so that the
diagrams can be generated from it. A request in flight is a state only where something
must wait for its end.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Generic, NamedTuple, TypeVar

from transitions import Machine

from databus.schemas.errors import IllegalTransitionError

State = TypeVar("State", bound=StrEnum)

# It logs each transition at INFO: several lines per request.
logging.getLogger("transitions").setLevel(logging.WARNING)


class Transition(NamedTuple):
    """In each of the states `sources`, `trigger` leads to `target`."""

    trigger: str
    sources: tuple[StrEnum, ...]
    target: StrEnum


class Lifecycle(StrEnum):
    """State of the whole client."""

    INITIAL = "initial"
    RUNNING = "running"
    PAUSED = "paused"
    # Stopped by an error; `resume` continues with everything as it was.
    SUSPENDED = "suspended"
    SHUT_DOWN = "shut_down"


LIFECYCLE = (
    Transition("start", (Lifecycle.INITIAL,), Lifecycle.RUNNING),
    Transition("pause", (Lifecycle.RUNNING,), Lifecycle.PAUSED),
    Transition("resume", (Lifecycle.PAUSED, Lifecycle.SUSPENDED), Lifecycle.RUNNING),
    Transition("suspend", (Lifecycle.RUNNING, Lifecycle.PAUSED), Lifecycle.SUSPENDED),
    Transition("shut_down", tuple(s for s in Lifecycle if s != "shut_down"), Lifecycle.SHUT_DOWN),
)


class ServerSet(StrEnum):
    """Whether a change of the server set can take effect now."""

    IDLE = "idle"
    BUSY = "busy"  # a request is in flight
    CHANGED = "changed"  # a request is in flight, and the set has changed since it was sent


SERVER_SET = (
    Transition("begin_request", (ServerSet.IDLE,), ServerSet.BUSY),
    Transition("change", (ServerSet.IDLE,), ServerSet.IDLE),
    Transition("change", (ServerSet.BUSY, ServerSet.CHANGED), ServerSet.CHANGED),
    Transition("end_request", (ServerSet.BUSY, ServerSet.CHANGED), ServerSet.IDLE),
)


class Connection(StrEnum):
    """State of one registration's connection to its servers."""

    INITIAL = "initial"
    PICKING_RELAY = "picking_relay"
    REQUESTING_SOURCES = "requesting_sources"
    REGISTERING = "registering"
    REQUESTING_POSITION = "requesting_position"
    STREAMING = "streaming"
    PICKING_BOOTSTRAP = "picking_bootstrap"
    REGISTERING_AT_BOOTSTRAP = "registering_at_bootstrap"
    REQUESTING_START_SCN = "requesting_start_scn"
    SNAPSHOT = "snapshot"
    REQUESTING_TARGET_SCN = "requesting_target_scn"
    CATCHUP = "catchup"
    CLOSED = "closed"


_ON_A_RELAY = (
    Connection.REQUESTING_SOURCES,
    Connection.REGISTERING,
    Connection.REQUESTING_POSITION,
    Connection.STREAMING,
)
_ON_A_BOOTSTRAP = (
    Connection.REGISTERING_AT_BOOTSTRAP,
    Connection.REQUESTING_START_SCN,
    Connection.SNAPSHOT,
    Connection.REQUESTING_TARGET_SCN,
    Connection.CATCHUP,
)
BOOTSTRAPPING = frozenset((Connection.PICKING_BOOTSTRAP, *_ON_A_BOOTSTRAP))

CONNECTION = (
    Transition("start", (Connection.INITIAL,), Connection.PICKING_RELAY),
    Transition("picked", (Connection.PICKING_RELAY,), Connection.REQUESTING_SOURCES),
    Transition("sources_known", (Connection.REQUESTING_SOURCES,), Connection.REGISTERING),
    Transition("registered", (Connection.REGISTERING,), Connection.STREAMING),
    # The start is a time, a GTID or a place in a binlog: only a relay knows its SCN.
    Transition("ask_position", (Connection.REGISTERING,), Connection.REQUESTING_POSITION),
    Transition("position_known", (Connection.REQUESTING_POSITION,), Connection.STREAMING),
    Transition("streamed", (Connection.STREAMING,), Connection.STREAMING),
    # A table was altered: the relay has a schema version newer than the registration.
    Transition("schema_unknown", (Connection.STREAMING,), Connection.REGISTERING),
    Transition("failed", _ON_A_RELAY, Connection.PICKING_RELAY),
    Transition(
        "servers_changed", (Connection.PICKING_RELAY, *_ON_A_RELAY), Connection.PICKING_RELAY
    ),
    Transition(
        "scn_not_found",
        (Connection.REQUESTING_POSITION, Connection.STREAMING),
        Connection.PICKING_RELAY,
    ),
    # Only from here: a relay that was not asked yet may still hold the SCN.
    Transition("gone_everywhere", (Connection.PICKING_RELAY,), Connection.PICKING_BOOTSTRAP),
    # The checkpoint is in the middle of a bootstrap: continue it, without a relay's events.
    Transition("resume_bootstrap", (Connection.REGISTERING,), Connection.PICKING_BOOTSTRAP),
    Transition("picked", (Connection.PICKING_BOOTSTRAP,), Connection.REGISTERING_AT_BOOTSTRAP),
    # From here on the checkpoint determines the next step, so any step may be the first
    # after a restart.
    Transition(
        "ask_start_scn",
        # In the classic order the catch-up of one source may have continued at another
        # server, or have been empty there: that server then restarts the snapshots.
        (
            Connection.REGISTERING_AT_BOOTSTRAP,
            Connection.REQUESTING_TARGET_SCN,
            Connection.CATCHUP,
        ),
        Connection.REQUESTING_START_SCN,
    ),
    Transition("read_snapshot", _ON_A_BOOTSTRAP, Connection.SNAPSHOT),
    Transition(
        "ask_target_scn",
        (Connection.REGISTERING_AT_BOOTSTRAP, Connection.SNAPSHOT),
        Connection.REQUESTING_TARGET_SCN,
    ),
    Transition(
        "read_catch_up",
        (
            Connection.REGISTERING_AT_BOOTSTRAP,
            Connection.REQUESTING_TARGET_SCN,
            Connection.CATCHUP,
        ),
        Connection.CATCHUP,
    ),
    Transition(
        "schema_unknown",
        (Connection.SNAPSHOT, Connection.CATCHUP),
        Connection.REGISTERING_AT_BOOTSTRAP,
    ),
    # Not straight back to STREAMING: the relay may have been restarted with
    # another schema version while the bootstrap ran.
    Transition(
        "caught_up",
        (
            Connection.REGISTERING_AT_BOOTSTRAP,
            Connection.REQUESTING_TARGET_SCN,
            Connection.CATCHUP,
        ),
        Connection.PICKING_RELAY,
    ),
    Transition("failed", _ON_A_BOOTSTRAP, Connection.PICKING_BOOTSTRAP),
    Transition(
        "servers_changed",
        (Connection.PICKING_BOOTSTRAP, *_ON_A_BOOTSTRAP),
        Connection.PICKING_BOOTSTRAP,
    ),
    Transition("close", tuple(s for s in Connection if s != "closed"), Connection.CLOSED),
)


class StateMachine(Generic[State]):
    """One machine over one table. Not thread-safe."""

    def __init__(self, initial: State, table: Sequence[Transition]) -> None:
        self.state: State = initial
        machine = Machine(model=None, states=type(initial), initial=initial, auto_transitions=False)
        for trigger, sources, target in table:
            machine.add_transition(trigger, list(sources), target)
        machine.add_model(self, initial=initial)

    def may(self, trigger: str) -> bool:
        """Whether the table has this transition from the current state."""
        model: Any = self  # `transitions` gives its models this method
        return bool(model.may_trigger(trigger))

    def fire(self, trigger: str) -> None:
        """Take the transition; raise IllegalTransitionError and stay if there is none."""
        if not self.may(trigger):
            raise IllegalTransitionError(self.state, trigger)
        model: Any = self
        model.trigger(trigger)
