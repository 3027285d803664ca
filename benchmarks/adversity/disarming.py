"""Checks of the product that can be switched off, each with the attack that must then succeed.

Only `disarmed` calls these, in a process of its own. What is patched must be there: a check that
was renamed fails here, not in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.adversity.servers import Kind


@dataclass(frozen=True)
class Check:
    """One check: how to switch it off, and by which attack that is seen."""

    switch_off: Callable[[], None]
    attack: str
    kind: Kind
    because: str  # in what is found then: not any failure will do


def _replace(owner: Any, name: str, by: Callable[..., Any]) -> None:
    if not hasattr(owner, name):
        raise AttributeError(f"{owner} has no {name}: mend benchmarks/adversity/disarming.py")
    setattr(owner, name, by)


def _log_identity() -> None:
    """Go on at a place whatever stands there."""
    from databus.relay.sources.mysql import same_log
    from databus.relay.sources.mysql.server.position import start_at_position
    from databus.relay.sources.mysql.stream.identities import Identities
    from databus.schemas.scn import binlog_position

    def begin(self: Any, after_scn: int, files: Any, _newest: Any) -> Any:
        place = binlog_position(after_scn)
        start = start_at_position(place, self._epoch, files)
        return start, Identities(self.server)

    _replace(same_log.SameLog, "begin", begin)


def _transient_retry() -> None:
    """Take a broken connection for an error that needs somebody."""
    from databus.relay.capture import Capture

    def back_off(self: Any, _error: Exception) -> None:
        self.pause()

    _replace(Capture, "_back_off", back_off)


def _ring_check() -> None:
    """Serve what lay in a ring's file without a look at it."""
    from databus.relay import ring_check

    owner = ring_check.RingCheck
    _replace(owner, "reach", lambda _self, _position, end: end)
    _replace(owner, "check_at", lambda _self, _position: None)
    _replace(owner, "check_block", lambda _self, _number: 0)


CHECKS = {
    "log-identity": Check(_log_identity, "log-reset-while-down-equal", "mariadb", "silent loss"),
    "transient-retry": Check(
        _transient_retry, "connections-cut-under-load", "mariadb", "relay is paused"
    ),
    "ring-check": Check(_ring_check, "flip-old-windows-at-rest-1", "sqlite", "names shop.ring"),
}
