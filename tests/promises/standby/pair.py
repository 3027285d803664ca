"""Two relays of one source, of which one captures under a lease, and what is looked at of them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from tests.promises.running import RunningRelay, running, wait_until

TTL_S = 4.0


def role(relay: RunningRelay) -> Mapping[str, Any]:
    """Return the role of a relay; nothing while it does not answer."""
    try:
        found = relay.get("/health").json()["physicalSources"]["shop"]["role"]
    except OSError:
        return {}
    return dict(found)


def is_active(relay: RunningRelay) -> bool:
    """Return whether a relay captures, by its own word."""
    return bool(role(relay).get("isActive"))


class Pair:
    """Relays with the same settings but for their ports."""

    def __init__(
        self,
        folder: Path,
        source: Mapping[str, Any],
        coordinator: str,
        count: int = 2,
        own: Sequence[Mapping[str, Any]] = ({}, {}),
    ) -> None:
        """`own` is what each relay has for itself in place of `source`."""
        self.relays = [
            RunningRelay(
                folder / f"relay-{number}",
                {"capture_lease_s": TTL_S, **source, **differing},
                name=f"relay-{number}",
                coordinator=coordinator,
            )
            for number, differing in zip(range(1, count + 1), cycle(own))
        ]

    def wait_for_active(self, *among: RunningRelay) -> RunningRelay:
        """Wait until one of these relays, or of all, captures; return it."""
        candidates = among or self.relays

        def tell() -> str:
            return "\n".join(one.child.log_tail() for one in candidates)

        wait_until(lambda: any(map(is_active, candidates)), "a relay that captures", tell)
        return next(one for one in candidates if is_active(one))

    def other(self, relay: RunningRelay) -> RunningRelay:
        """Return one that is not this relay."""
        return next(one for one in self.relays if one is not relay)

    def take_over_from(self, active: RunningRelay, number: signal.Signals) -> float:
        """Kill or stop the relay that captures; return the seconds until another one does."""
        began_s = time.monotonic()
        if number is signal.SIGKILL:
            active.child.kill()
        else:
            os.kill(active.child.pid, number)
        self.wait_for_active(*(one for one in self.relays if one is not active))
        return time.monotonic() - began_s


@contextlib.contextmanager
def paired(pair: Pair) -> Iterator[Pair]:
    """Start the relays, the first one first."""
    with contextlib.ExitStack() as stack:
        for relay in pair.relays:
            stack.enter_context(running(relay)).start()
        yield pair
