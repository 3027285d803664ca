"""Contenders for one lease with clocks of their own, and a record of who held it when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from databus.leases.errors import LeaseUnavailableError
from databus.leases.file_records import FileRecords
from databus.leases.records import Records, Stored
from databus.leases.store import Lease, LeaseStore

LEASE = "billing/7"
TTL_S = 10.0


class Unsteady(FileRecords):
    """Records that cannot be reached as long as `is_down`."""

    is_down = False

    def read(self, name: str, on_change: Callable[..., None] | None = None) -> Stored | None:
        if self.is_down:
            raise LeaseUnavailableError(self.shown, "it is down")
        return super().read(name, on_change)


@dataclass
class Time:
    """The true time, which nobody can read."""

    now_s: float = 1000.0


@dataclass
class Contender:
    """One process: its clock began at another moment and runs at a speed of its own."""

    name: str
    records: Records
    time: Time
    speed: float = 1.0
    offset_s: float = 0.0
    lease: Lease | None = None
    store: LeaseStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = LeaseStore(self.records, self.clock_s, lambda: self.time.now_s * 1e6 % 1e9)

    def clock_s(self) -> float:
        return self.time.now_s * self.speed + self.offset_s

    @property
    def holds(self) -> bool:
        return self.lease is not None and self.store.held_for_s(self.lease) > 0


def run(
    open_store: Callable[[], Records], rng: Random, steps: int, contenders: int = 3
) -> list[tuple[int, str]]:
    """Let contenders act at random; return the log of terms, with each term's owner.

    Asserts after each step that at most one of them believes to hold the lease, and that it is
    the one with the greatest term.
    """
    time, log = Time(), list[tuple[int, str]]()
    everyone = [
        Contender(f"c{n}", open_store(), time, rng.uniform(0.95, 1.05), rng.uniform(-1e5, 1e5))
        for n in range(contenders)
    ]
    for _ in range(steps):
        time.now_s += rng.choice((0.01, 0.5, 2.0, 2.0, 3.0, TTL_S, 3 * TTL_S))
        act(rng.choice(everyone), rng, log)
        holders = [one for one in everyone if one.holds]
        assert len(holders) <= 1, (holders, log[-3:])
        assert all(one.lease is not None and one.lease.term == log[-1][0] for one in holders)
    return log


def act(one: Contender, rng: Random, log: list[tuple[int, str]]) -> None:
    """Let one contender do one thing, as a process might after any pause."""
    try:
        if one.lease is None or not one.holds:
            got = one.store.acquire(LEASE, one.name, TTL_S)
            if got is not None:
                one.lease = got
                log.append((got.term, one.name))
            elif one.lease is not None and rng.random() < 0.5:
                one.lease = one.store.renew(one.lease)
        elif rng.random() < 0.8:
            one.lease = one.store.renew(one.lease)
        else:
            one.store.release(one.lease)
            one.lease = None
    except LeaseUnavailableError:
        pass
