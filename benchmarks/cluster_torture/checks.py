"""Checks what the processes of a group noted. Values in, problems out.

A process that was frozen in the middle of a window ends that window when it wakes, whoever has its
partitions by then: no library can take back a callback that has begun. Nothing else may come late.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from benchmarks.cluster_torture.log import Entry
from benchmarks.torture.checks import Findings


class Span(NamedTuple):
    """A time of the machine's clock; `run` is the process that was frozen in it."""

    at_s: float
    until_s: float
    run: str = ""


@dataclass
class ClusterFindings(Findings):
    """Counts for the table, and all problems."""

    rows: int = 0
    twice: int = 0
    late: int = 0  # by a process that was frozen in the window
    terms: int = 0
    stored: int = 0
    refused: int = 0
    takeovers_s: list[float] = field(default_factory=list)

    @property
    def takeover_text(self) -> str:
        """How long it took until each partition of a killed process had begun elsewhere."""
        found = self.takeovers_s
        return f"{median(found):.1f} s, at most {max(found):.1f} s" if found else "none"


def check(
    entries: Sequence[Entry],
    changes: Mapping[int, Sequence[int]],
    freezes: Sequence[Span],
    clean: Sequence[Span],
    kills: Mapping[str, float],
) -> ClusterFindings:
    """Check the entries of all processes.

    `changes` are the serials of each key in their order; nothing may come twice in a `clean` span;
    `kills` says when a run was killed.
    """
    found = ClusterFindings()
    ordered = sorted(entries, key=lambda entry: entry.at_s)
    for entry in ordered:
        found.rollbacks += entry.kind == "rollback"
        found.refused += entry.kind == "refused"
        if entry.kind == "problem":
            found.add(f"process {entry.run}: {entry.text}")
    terms = Terms(ordered)
    terms.check(found)
    _check_rows(ordered, changes, clean, found)
    _check_deliveries(ordered, terms, freezes, found)
    found.takeovers_s = [
        seconds for run, at_s in kills.items() for seconds in terms.taken(run, at_s)
    ]
    return found


class Terms:
    """The terms of each partition, and what was stored under them."""

    def __init__(self, ordered: Iterable[Entry]) -> None:
        self.began: dict[str, list[Entry]] = defaultdict(list)
        self._stored: dict[str, list[Entry]] = defaultdict(list)
        self._first: dict[tuple[str, int, str], Entry] = {}
        for entry in ordered:
            if entry.kind == "began":
                self.began[entry.place].append(entry)
                self._first.setdefault((entry.place, entry.term, entry.run), entry)
            elif entry.kind == "stored":
                self._stored[entry.place].append(entry)

    def check(self, found: ClusterFindings) -> None:
        """Each term has one owner; they begin in their order, at what was stored before."""
        found.terms = len({(one.place, one.term) for of in self.began.values() for one in of})
        found.stored = sum(map(len, self._stored.values()))
        for place, began in self.began.items():
            owners: dict[int, str] = {}
            for one in began:
                if owners.setdefault(one.term, one.run) != one.run:
                    found.add(f"{_of(one)}: both {owners[one.term]} and {one.run} have this term")
                if self.overtaken(one):
                    found.add(f"{_of(one)} began at {one.at_s:.3f}, after a greater one")
                self._check_begin(one, self._stored[place], found)
        for stored in self._stored.values():
            for one in stored:
                if self.overtaken(one):
                    found.add(f"{_of(one)}: {one.scn} was stored after a greater term began")

    def overtaken(self, entry: Entry) -> Entry | None:
        """Return the first greater term that had certainly begun before something began."""
        greater = (
            one
            for one in self.began[entry.place]
            if one.term > entry.term and one.until_s < entry.at_s
        )
        return min(greater, key=lambda one: one.until_s, default=None)

    def begin(self, row: Entry) -> Entry | None:
        """Return the beginning of the term under which a row was delivered."""
        return self._first.get((row.place, row.term, row.run))

    def taken(self, run: str, killed_s: float) -> list[float]:
        """Return in how many seconds each partition of a killed run began elsewhere."""
        seconds = []
        for began in self.began.values():
            before = [one for one in began if one.until_s <= killed_s]
            newest = max(before, key=lambda one: one.term, default=None)
            if newest is None or newest.run != run:
                continue
            after = [one.until_s for one in began if one.term > newest.term]
            seconds += [min(after) - killed_s] if after else []
        return seconds

    def _check_begin(self, began: Entry, stored: Sequence[Entry], found: ClusterFindings) -> None:
        before = [one.scn for one in stored if one.until_s < began.at_s and one.term < began.term]
        if max(before, default=-1) > began.scn:
            found.add(f"{_of(began)} began at {began.scn}, and {max(before)} was stored before")


def _check_rows(
    ordered: Iterable[Entry],
    changes: Mapping[int, Sequence[int]],
    clean: Sequence[Span],
    found: ClusterFindings,
) -> None:
    """Every change came, those of each key in order; what came twice is left out."""
    came: dict[int, int] = defaultdict(int)  # how many of a key's changes
    for row in ordered:
        if row.kind != "row":
            continue
        found.rows += 1
        serials, expected = changes.get(row.key, ()), came[row.key]
        place = bisect_left(serials, row.serial)
        if place == len(serials) or serials[place] != row.serial:
            found.add(f"{_row(row)} was never committed")
        elif place > expected:
            found.add(f"{_row(row)} came before {serials[expected]}")
            came[row.key] = place + 1
        elif place == expected:
            came[row.key] += 1
        else:
            found.twice += 1
            if any(span.at_s <= row.at_s <= span.until_s for span in clean):
                found.add(f"{_row(row)} came twice, and nothing had happened")
    for key, serials in changes.items():
        if came[key] < len(serials):
            found.add(f"key {key}: {len(serials) - came[key]} changes were lost, the last ones")


def _check_deliveries(
    ordered: Iterable[Entry], terms: Terms, freezes: Sequence[Span], found: ClusterFindings
) -> None:
    """Rows came behind the checkpoint of their term, once in it, and not after a greater term."""
    seen: set[tuple[str, int, int, int]] = set()
    rolled_back: set[str] = set()
    firsts: dict[Span, int] = {}  # the window that a run was in when it woke
    for row in ordered:
        if row.kind == "rollback":
            rolled_back.add(row.run)
        if row.kind != "row":
            continue
        woken = _last_freeze(row, freezes)
        if woken is not None:
            firsts.setdefault(woken, row.scn)
        began = terms.begin(row)
        if began is None:
            found.add(f"{_row(row)} came without a term")
            continue
        if row.scn <= began.scn:
            found.add(f"{_row(row)} came, and its term began behind it, at {began.scn}")
        delivery = (row.place, row.term, row.key, row.serial)
        if delivery in seen and row.run not in rolled_back:
            found.add(f"{_row(row)} came twice under one term")
        seen.add(delivery)
        greater = terms.overtaken(row)
        if greater is None:
            continue
        if woken is None or firsts[woken] != row.scn or woken.at_s > greater.until_s:
            found.add(f"{_row(row)} came {row.at_s - greater.until_s:.3f} s after {_of(greater)}")
        else:
            found.late += 1


def _last_freeze(row: Entry, freezes: Sequence[Span]) -> Span | None:
    of_run = (one for one in freezes if one.run == row.run and one.until_s <= row.at_s)
    return max(of_run, key=lambda one: one.until_s, default=None)


def _of(entry: Entry) -> str:
    return f"partition {entry.place}, term {entry.term} of {entry.run}"


def _row(row: Entry) -> str:
    return f"{_of(row)}: change {row.serial} of key {row.key} in window {row.scn}"
