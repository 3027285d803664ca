"""One scene: the actions of which attacks consist, on processes as users run them.

A wait that times out raises `Broken`, which is a finding like those of the judge.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks.adversity.consumer import LOG, read_notes, read_stops
from benchmarks.adversity.judge import Cause, Evidence, Look, Who, hangs, judge
from benchmarks.adversity.monitor import fetch, look_at
from benchmarks.adversity.processes import PHYSICAL, Processes, Setting
from benchmarks.adversity.servers import Servers
from benchmarks.adversity.writer import SOURCE
from benchmarks.torture.log import Delivery
from databus.client.checkpoints.store import FileCheckpoints
from databus.demo.processes import pause, wait_until

PATIENCE_S = 120.0
DISARMED_PATIENCE_S = 15.0


class Broken(Exception):  # noqa: N818 - what an attack has found, not an error of the program
    """An expected event did not happen."""


class Scene(Processes):
    """A scene; a context manager. `draw` is the attack's random generator."""

    def __init__(self, name: str, setting: Setting, servers: Servers) -> None:
        super().__init__(setting, servers)
        self.draw = random.Random(f"{setting.seed} {name}")
        self.did = ""  # for people: the exact action
        self.saw = ""  # for people: the result
        self.wants_all = True
        self._causes: list[Cause] = []
        self._broken: list[str] = []
        self._may_end: set[str] = set()
        self._asked_s = 0.0

    # Starting and stopping

    def start(self) -> None:
        """Start relay and consumer, and the bootstrap pair where there is one."""
        self.start_relay()
        if self.setting.has_bootstrap:
            self.write(5)
            self.start_bootstrap()
        self.start_consumer()

    def start_from(self, place: str) -> None:
        """Set the position at which the relay starts; call it before the first start."""
        file = self.folder / "relay.toml"
        text = file.read_text(encoding="utf-8").replace('"earliest"', json.dumps(place))
        file.write_text(text, encoding="utf-8")

    def start_relay(self) -> None:
        """Start the relay and wait until it captures."""
        self.relay.start()
        self.monitor.watched["relay"] = self.relay_url
        self.wait(self._is_capturing, "the relay to be well")

    def start_bootstrap(self) -> None:
        """Start the bootstrap pair and wait until it serves."""
        self.bootstrap.start()
        self.monitor.watched["bootstrap"] = self.bootstrap_url
        self.wait_for_store()

    def wait_for_store(self) -> None:
        """Wait until the bootstrap pair is healthy and has caught up with the relay."""

        def has_all() -> bool:
            status, text = fetch(f"{self.bootstrap_url}/bootstrapStatus")
            is_served = status == 200 and '"active"' in text
            return is_served and fetch(f"{self.bootstrap_url}/health")[0] == 200

        self.wait(has_all, "the bootstrap pair")

    def start_consumer(self, *more: str) -> None:
        """Start the consumer, with additional arguments if given."""
        if more:
            self.consumer = self._child("consumer", [*self._consumer_command(), *more])
        self.consumer.start()
        self.monitor.watched["client"] = self.client_url

    def stop_relay(self) -> None:
        """Stop the relay by SIGTERM."""
        self.relay.stop(PATIENCE_S)

    # Waiting and looking

    def wait(self, is_so: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
        """Wait until a condition is true; raises Broken."""
        if self.setting.without:
            patience_s = min(patience_s, DISARMED_PATIENCE_S)  # it is expected to fail
        try:
            wait_until(is_so, patience_s, what)
        except TimeoutError as error:
            raise Broken(f"{error}: {self.tell()}") from None

    def look(self) -> Look:
        """Return the relay's current report."""
        return look_at("relay", self.relay_url)

    def problem(self) -> str:
        """Return the problem that the relay reports for its source, or ""."""
        status, text = fetch(f"{self.relay_url}/health")
        with contextlib.suppress(ValueError, KeyError):
            return str(json.loads(text)["physicalSources"][PHYSICAL]["problem"])
        return text if status != 200 else ""

    def state(self) -> str:
        """Return the state of the relay's source; empty when it does not answer."""
        with contextlib.suppress(ValueError, KeyError):
            found = json.loads(fetch(f"{self.relay_url}/health")[1])
            return str(found["physicalSources"][PHYSICAL]["state"])
        return ""

    def _is_capturing(self) -> bool:
        # A table's schema is published once the source is open and watches it.
        return (
            self.is_well()
            and SOURCE in fetch(f"{self.relay_url}/sources")[1]
            and ("schema" in fetch(f"{self.relay_url}/register?sources=1")[1])
        )

    def bootstrap_problem(self) -> str:
        """Return the problem that the bootstrap pair reports, or ""."""
        return _complaint(*fetch(f"{self.bootstrap_url}/health"))

    def client_problem(self) -> str:
        """Return the problem that the consumer's client reports, or ""."""
        return _complaint(*fetch(f"{self.client_url}/health"))

    def checkpoint_scn(self) -> int:
        """Return the SCN of the consumer's checkpoint on disk."""
        on_disk = FileCheckpoints(self.checkpoints).load("default", (SOURCE,))
        return -1 if on_disk is None else on_disk.window_scn

    def wait_for_ring(self, transactions: int) -> None:
        """Wait until the relay has captured a number of transactions."""

        def windows() -> float:
            figures = self.look().figures
            return sum(v for name, v in figures.items() if "_relay_events_total{" in name)

        session = self.database.connect()
        ((rows,),) = session.rows("SELECT count(*) FROM orders")
        session.close()
        self.wait(lambda: windows() >= rows, f"{transactions} transactions in the ring")

    def wait_for_words(
        self, says: Callable[[], str], *words: str, patience_s: float = PATIENCE_S
    ) -> None:
        """Wait until a report contains each of these words; a word may have alternatives."""

        def is_said() -> bool:
            text = says()
            return all(any(one in text for one in word.split("|")) for word in words)

        try:
            self.wait(is_said, f"words such as {', '.join(words)}", patience_s)
        except Broken:
            said = says()
            self.found(f"false health: nobody says {', '.join(words)}, only: {said[:300] or '-'}")

    def is_well(self) -> bool:
        """Return whether the relay reports health."""
        return fetch(f"{self.relay_url}/health")[0] == 200

    def delivered(self) -> int:
        """Return the newest transaction that the consumer has."""
        return self._applied.get()

    def deliveries(self) -> list[Delivery]:
        """Return the consumer's notes."""
        return list(read_notes(self.folder / LOG))

    def stops(self) -> list[str]:
        """Return the reason of each stop of the consumer."""
        return read_stops(self.folder / LOG)

    def tell(self) -> str:
        """Return the state in one line."""
        stops = self.stops()
        return (
            f"{self.delivered()} of {self.writer.committed} delivered; the relay is "
            f"{self.state() or 'not answering'}: {self.problem() or 'no problem'}"
            + (f"; the consumer: {stops[-1]}" if stops else "")
        )[:700]

    # Verbs

    def write(self, transactions: int) -> None:
        """Commit a number of transactions."""
        self.writer.write(transactions)

    def execute(self, statement: str) -> None:
        """Run a statement in the writer's database."""
        session = self.writer.database.connect()
        try:
            session.execute(statement)
        finally:
            session.close()

    def post(self, verb: str) -> None:
        """POST a command to the relay's source: pause, resume and the like."""
        url = f"{self.relay_url}/api/v1/physicalSources/{PHYSICAL}/{verb}"
        request = urllib.request.Request(url, method="POST")
        urllib.request.urlopen(request, timeout=PATIENCE_S).close()

    def await_all(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until the consumer has everything, after the problem has ended."""
        committed = self.writer.committed
        what = "everything to be delivered after the cause was gone"
        self.wait(lambda: self.delivered() >= committed, what, patience_s)
        self.saw = self.saw or f"went on by itself, {committed} transactions"

    def await_well(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until the relay has recovered by itself."""
        self.wait(self.is_well, "the relay to be well again by itself", patience_s)

    def await_stop(self, *words: str, after: int, patience_s: float = PATIENCE_S) -> str:
        """Wait until capture stops with an error that has these words; nothing is delivered."""
        self.wants_all = False

        def has_stopped() -> bool:
            self.check_nothing_came(after)
            return self.state() == "error"

        self.wait(has_stopped, "capture to stop with an error", patience_s)
        return self.check_words(self.problem(), *words)

    def check_nothing_came(self, after: int) -> None:
        """Raise Broken if a transaction of another history was delivered."""
        if self.delivered() > after:
            raise Broken(f"silent loss: after {after} of the old log came {self.delivered()}")

    def check_words(self, text: str, *words: str) -> str:
        """Record words that an error lacks; of alternatives one is enough."""
        lacking = [w for w in words if not any(one in text for one in w.split("|"))]
        if lacking:
            self.found(f"unclear error: it does not say {', '.join(lacking)}: {text[:400]}")
        self.saw = self.saw or f"stopped: {text[:160]}"
        return text

    def found(self, problem: str) -> None:
        """Record a problem."""
        self._broken.append(problem)

    @contextlib.contextmanager
    def ill(
        self, text: str, *who: Who, within_s: float = 10.0, hold_s: float = 2.0
    ) -> Iterator[None]:
        """Record a problem that lasts as long as the `with`: these processes must report it.

        The `with` lasts until they had the time for it, and `hold_s` longer.
        """
        begin_s = time.monotonic()
        yield
        self.rest(begin_s + within_s + hold_s - time.monotonic())
        self._causes.append(Cause(text, begin_s, time.monotonic(), within_s, who or ("relay",)))

    def rest(self, seconds: float) -> None:
        """Let time pass in which nothing may happen."""
        pause(seconds)

    def may_end(self, *names: str) -> None:
        """Expect that a process ends by itself."""
        self._may_end.update(names)

    # The end

    def verdict(self) -> list[str]:
        """Stop consumer and relay; return all problems."""
        end_s = time.monotonic()
        ended = {
            child.name: code
            for child in self._children
            if (code := child.exit_code) is not None and child.name not in self._may_end
        }
        for child in reversed(self._children):
            child.stop()
        evidence = Evidence(
            self.deliveries(),
            self.writer.committed if self.wants_all and not self._broken else None,
            list(self.monitor.looks),
            self._causes,
            ended,
            self._broken,
        )
        found = judge(evidence)
        silent = hangs(evidence.looks, "relay", self._asked_s, end_s) if self._asked_s else ""
        return [*found, *filter(None, [silent])]

    def must_answer_from_now_on(self) -> None:
        """Expect that the relay answers until the end."""
        self._asked_s = time.monotonic()


def _complaint(status: int, text: str) -> str:
    """Return the problem that a health response reports."""
    if status == 0:
        return ""
    with contextlib.suppress(ValueError):
        found = json.loads(text)
        told = [found.get("problem"), found.get("problems"), *_problems_of(found)]
        return " | ".join(str(one) for one in told if one)
    return text if status != 200 else ""


def _problems_of(health: Mapping[str, Any]) -> Iterator[Any]:
    registrations = health.get("registrations") or {}
    values = registrations.values() if isinstance(registrations, dict) else registrations
    for one in values:
        if isinstance(one, dict):
            yield one.get("problem")
