"""Looks at MaxSCN in the coordinator all the time: neither it nor its term may go back."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from typing import NamedTuple

from databus.leases.errors import LeaseError
from databus.leases.places import open_records
from databus.leases.records import record_name
from databus.relay.capture.max_scn import Saved
from tests.promises.running import meanwhile

_EVERY_S = 0.02


class Seen(NamedTuple):
    """What MaxSCN was: the term under which it was saved, and the SCN, -1 without one."""

    term: int
    scn: int


class MaxScnWatch:
    """The values of MaxSCN of one physical source, each once."""

    def __init__(self, coordinator: str, source: str) -> None:
        self.seen: list[Seen] = []
        self._records = open_records(coordinator)
        self._name = f"max_scn/{record_name(source, source)}"

    @property
    def went_back(self) -> list[tuple[Seen, Seen]]:
        """The pairs of values of which the second must not follow the first."""
        pairs = itertools.pairwise(self.seen)
        return [(one, two) for one, two in pairs if two.term < one.term or two.scn < one.scn]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Look meanwhile, on a thread."""
        with contextlib.closing(self._records), meanwhile(self._run):
            yield

    def _run(self, ended: threading.Event) -> None:
        while not ended.wait(_EVERY_S):
            with contextlib.suppress(LeaseError):  # it is away
                self._look()

    def _look(self) -> None:
        stored = self._records.read(self._name)
        saved = None if stored is None else Saved.decode(stored.data)
        if saved is None or saved.term is None:
            return
        seen = Seen(saved.term, -1 if saved.scn is None else saved.scn)
        if self.seen[-1:] != [seen]:
            self.seen.append(seen)
