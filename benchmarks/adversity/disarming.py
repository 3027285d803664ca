"""Checks of the product that can be switched off, each with the attacks that must then succeed.

Only `disarmed` calls these, in its own process. The patched name must exist: a check that
was renamed fails here instead of being skipped.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Makes the replacement of an object, given the object.
Instead = Callable[[Any], Any]


@dataclass(frozen=True)
class Switch:
    """One check: the patches that switch it off, and the attacks that must then succeed."""

    patches: Mapping[str, Instead]  # by `module:name` or `module:Class.name`, within the product
    attacks: Sequence[str]  # `name/source`; each of them must see it
    because: str  # must be part of the findings: not any failure will do
    is_short: bool = False  # its first attack is short: the tests run it

    def switch_off(self) -> None:
        """Patch the product, for the rest of this process."""
        for target, instead in self.patches.items():
            owner, name = owner_of(target)
            setattr(owner, name, instead(getattr(owner, name)))


def owner_of(target: str) -> tuple[Any, str]:
    """Return the module or class that owns a patched name, and the name."""
    module, _, path = target.partition(":")
    *owners, name = path.split(".")
    owner: Any = importlib.import_module(f"databus.{module}")
    for one in owners:
        owner = getattr(owner, one)
    if not hasattr(owner, name):
        raise AttributeError(f"no {target}: mend benchmarks/adversity/disarming.py")
    return owner, name


def _always(value: object) -> Instead:
    """Return a patch that makes a function always return the same value."""
    return lambda _original: lambda *_, **__: value


def _simply(value: object) -> Instead:
    """Return a patch that replaces a value."""
    return lambda _original: value


def _begin_anywhere(self: Any, after_scn: int, files: Any, _newest: Any) -> Any:
    """Continue at a position whatever the log has there."""
    from databus.relay.sources.mysql.replication.log_identities import Identities
    from databus.relay.sources.mysql.server.start_position import start_at_position
    from databus.schemas.scn import binlog_position

    place = binlog_position(after_scn)
    return start_at_position(place, self.epoch, files), Identities(self.server)


def _place_as_said(original: Any) -> Any:
    """Trust the end position in each event."""

    def place(self: Any, event: Any, **how: bool) -> Any:
        self._has_gaps = True
        return original(self, event, **how | {"is_inside": False})

    return place


def _pause(self: Any, _error: Exception) -> None:
    """Treat a broken connection as an error that needs a person."""
    self.pause()


def _note_as_running(original: Any) -> Any:
    """Report health whatever the state."""
    from databus.relay.capture.status import TROUBLED, State

    def note(self: Any, state: Any, problem: str = "", wait_s: float | None = None) -> None:
        if state in TROUBLED:
            original(self, State.RUNNING)
        else:
            original(self, state, problem, wait_s)

    return note


def _follow_anywhere(self: Any, scn: int, offset: int, _begin: object) -> None:
    """Continue wherever a relay says."""
    if offset >= 0:
        self._continue_at = (scn, offset)
    elif scn != self.position.scn:
        self.position = type(self.position)(self.position.checkpoint.at(max(scn, 0)))


def _length_as_said(buffer: Any, offset: int) -> int:
    """Trust an event's length without checking the header's CRC."""
    from databus.schemas.event.layout import V2

    return int.from_bytes(buffer[offset + V2.length.offset : offset + V2.length.end], "big")


_RING = "relay.ring.check:RingCheck."

CHECKS: Mapping[str, Switch] = {
    "log-identity": Switch(
        {"relay.sources.mysql.replication.same_log:SameLog.begin": _simply(_begin_anywhere)},
        ["log-reset-while-down-equal/mariadb"],
        "silent loss",
        is_short=True,
    ),
    "packet-sequence": Switch(
        {
            "relay.sources.mysql.source:CompiledAssembler": _simply(None),
            "relay.sources.mysql.binlog.packets:check_sequence": _always(None),
        },
        ["wire-drop-transaction-from-gtid/mariadb", "wire-drop-transaction-from-gtid/mysql"],
        "silent loss",
        is_short=True,
    ),
    "event-continuity": Switch(
        {"relay.sources.mysql.replication.log_cursor:LogCursor.place": _place_as_said},
        [
            "wire-drop-transaction-renumbered/mariadb",
            "wire-drop-transaction-renumbered/mysql",
        ],
        "silent loss",
        is_short=True,
    ),
    "transient-retry": Switch(
        {"relay.capture.capture:Capture._back_off": _simply(_pause)},
        ["connections-cut-under-load/mariadb"],
        "relay is paused",
    ),
    "disk-full-retry": Switch(
        {"daemon.faults:_is_resource": _always(False)},
        ["data-dir-full-and-quiet/sqlite"],
        "relay is error",
    ),
    "descriptor-reserve": Switch(
        {"daemon.service:fit_connections": lambda _original: lambda asked, _own_files: asked},
        ["idle-connections-few-files/mariadb"],
        "beside strangers",
    ),
    "false-states": Switch(
        {"relay.capture.capture:Capture._note": _note_as_running},
        ["network-refuses/mariadb"],
        'source_state{state="running"} 1',
    ),
    "ring-check": Switch(
        {
            f"{_RING}reach": lambda _original: lambda _self, _position, end: end,
            f"{_RING}check_at": _always(None),
            f"{_RING}check_block": _always(0),
        },
        ["flip-old-windows-at-rest-1/sqlite"],
        "names shop.ring",
    ),
    "checkpoint-checksum": Switch(
        {"groups.kept_checkpoint:_check_whole": _always(None)},
        ["flip-checkpoint-scn/sqlite"],
        "wrong row: the checkpoint was",
        is_short=True,
    ),
    "schemas-checksum": Switch(
        {
            "registry.sqlite_store:crc32": _always(0),
            # Otherwise its copy and the ring's rows would reveal the damage.
            "registry.sqlite_store:SqliteStore._copied": _always(None),
            "relay.opening:check_schemas": _always(None),
        },
        ["flip-schemas-text/sqlite"],
        "names schemas.db",
    ),
    "store-check": Switch(
        {
            "bootstrap.store.watch:check_store": _always(()),
            "bootstrap.store.snapshot_pages:check_events": _always(None),
            "bootstrap.store.log_table:check_events": _always(None),
        },
        ["flip-bootstrap-store-row/sqlite"],
        "names shop.db",
    ),
    "resume-forward": Switch(
        {"client.machines.connection:ConnectionMachine._follow": _simply(_follow_anywhere)},
        ["lying-relay-resume-before/sqlite"],
        "scn 0 is gone",  # and the client has given up for good
    ),
    "length-before-crc": Switch(
        {"schemas.event.v2:checked_length": _simply(_length_as_said)},
        ["lying-relay-length-2g/sqlite"],
        "max_window_bytes",
    ),
}
