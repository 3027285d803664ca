"""One round: a server is killed under load, and what must come of it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from databus.relay.sources.mysql.binlog.gtid_set import MysqlGtidSet
from tests.promises.running import Remembering, RunningRelay, wait_until
from tests.promises.switching.server_pair import Load, ServerPair, rows

FEW = 20  # rows that are waited for
NOT_FOUND = "its log does not have the last"
LACKS = "it lacks transactions that were delivered: "


class Outcome(StrEnum):
    """What a replica is like when its primary is killed."""

    COMPLETE = "complete"
    LACKING = "lacking"


@dataclass
class Findings:
    """What came of all rounds; times in seconds, from the kill to the first new row."""

    lost: int = 0
    twice: int = 0
    rows: int = 0
    named: int = 0  # transactions that the relay said are missing
    switched_s: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Rounds:
    """Plays rounds with running servers, and checks after each what the client has."""

    def __init__(
        self,
        pair: ServerPair,
        relay: RunningRelay,
        load: Load,
        consumer: Remembering,
        *,
        has_gtids: bool = True,
    ) -> None:
        self._has_gtids = has_gtids
        self._pair, self._relay, self._load, self._consumer = pair, relay, load, consumer
        self.findings = Findings()

    def play(self, outcome: Outcome) -> None:
        """Play one; raises AssertionError if something does not happen in time."""
        if outcome is Outcome.COMPLETE:
            self._complete()
        else:
            self._lack()
        self._check()

    def _complete(self) -> None:
        pair = self._pair
        with self._loaded():
            self._control("pause")
            self._let_read()
            # The replica may have more than what was delivered, and lack what was not.
            delivered = {*self._ids}
            self._wait(lambda: delivered <= {*rows(pair.replica)}, "the replica")
            pair.primary.kill()
            killed_s = time.monotonic()
        pair.promote()
        before = len(self._ids)
        self._control("unpause")
        with self._load.running():
            self._wait(lambda: len(self._ids) > before, "the next server", self._told)
            self.findings.switched_s.append(time.monotonic() - killed_s)
            self._wait(lambda: len(self._ids) > before + FEW, "more rows", self._told)
        pair.rebuild()
        pair.catch_up()

    def _lack(self) -> None:
        pair, relay = self._pair, self._relay
        with self._loaded():
            pair.hold_replica()
            held = len(rows(pair.replica))
            self._wait(lambda: len(self._ids) > held + FEW, "rows that it lacks", self._told)
            pair.primary.kill()
        problem = relay.wait_for_problem(LACKS if self._has_gtids else NOT_FOUND)
        # Until it gives up, it would go on at the replica once that has everything.
        self._wait(lambda: self._state() == "error", "capture to stop", self._told)
        self._let_read()
        if self._has_gtids:
            self._count_named(problem)
        if (status := relay.get("/health").status) != 503:
            self._tell(f"/health answered {status} without a server to read")
        pair.primary.start()
        pair.release_replica()
        self._control("unpause")
        with self._loaded():
            pass
        pair.catch_up()

    def _count_named(self, problem: str) -> None:
        missing, named = {*self._ids} - {*rows(self._pair.replica)}, count_named(problem)
        self.findings.named += named
        if named != len(missing):
            self._tell(f"{named} transactions are named, and {len(missing)} are missing: {problem}")

    @contextmanager
    def _loaded(self) -> Iterator[None]:
        """Write rows, and wait for a few; then until the end of the block."""
        before = len(self._ids)
        with self._load.running():
            self._wait(lambda: len(self._ids) > before + FEW, "rows", self._told)
            yield

    def _check(self) -> None:
        """Compare the client's rows with those of the server that is read."""
        expected, findings = rows(self._pair.primary), self.findings
        self._wait(lambda: len(self._ids) >= len(expected), "the rest of the rows", self._told)
        found = self._ids
        findings.rows = len(expected)
        findings.lost += len({*expected} - {*found})
        findings.twice += len(found) - len({*found})
        if found != expected:
            self._tell("the client's rows are not those of the server")
        for error in self._consumer.errors:
            self._tell(f"the client was told of an error: {error}")
        self._consumer.errors.clear()

    def _let_read(self) -> None:
        """Wait until the client has all that the relay has."""
        self._wait(lambda: self._consumer.scn >= self._relay.max_scn(), "the client to read all")

    def _control(self, verb: str) -> None:
        answer = self._relay.post(f"/controlSources/{verb}", source="shop")
        assert answer.status == 200, answer.body

    def _state(self) -> str:
        view = self._relay.get("/api/v1/physicalSources/shop").json()
        return str(view["state"])

    def _told(self) -> str:
        primary, replica = (len(rows(one)) for one in (self._pair.primary, self._pair.replica))
        known = f"primary {primary}, replica {replica}, client {len(self._ids)} rows"
        return f"{known}; writer: {self._load.ended}; {self._relay.tell()}"

    @property
    def _ids(self) -> list[int]:
        return [event.row["id"] for event in self._consumer.events]

    def _tell(self, problem: str) -> None:
        self.findings.problems.append(problem)

    def _wait(
        self, is_so: Callable[[], object], what: str, tell: Callable[[], object] = str
    ) -> None:
        wait_until(is_so, what, tell)


def count_named(problem: str) -> int:
    """Return how many transactions a relay's error says are missing; raises ValueError."""
    text = problem.partition(LACKS)[2].partition(". ")[0]
    if ":" in text:
        intervals = MysqlGtidSet.parse(text).intervals.values()
        return sum(end - begin for found in intervals for begin, end in found)
    count = 0
    for part in text.split(", "):
        numbers = [int(number) for number in re.findall(r"\d+-\d+-(\d+)", part)]
        count += numbers[-1] - numbers[0] + 1
    return count
