"""A reload that runs: reads the snapshot of one source, and hands its rows to a running sink."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

from databus.client.checkpoints.store import MemoryCheckpoints
from databus.client.client import DatabusClient
from databus.client.dispatcher.data_window import DataWindow, read_of
from databus.client.dispatcher.session import with_events
from databus.client.machines.bootstrap_steps import begin
from databus.client.puller.buffer_items import Phase
from databus.client.sinks.contract import Change
from databus.client.sinks.reloading.requests import ReloadRequest
from databus.client.sinks.reloading.rule import ReloadRule
from databus.client.sinks.rules.changes import RuleOf, changes_of
from databus.conf.settings import ClientSettings
from databus.schemas.checkpoint import LINEAR, Checkpoint
from databus.schemas.errors import DatabusError

log = logging.getLogger(__name__)

_TICK_S = 0.05
_AGAIN_S = 2.0
_MAX_KEYS = 5_000_000  # of changed rows; about a gigabyte


class Target(Protocol):
    """A session of a sink: it gets changes in the order of the log, and rows beside them."""

    @property
    def passed_scn(self) -> int:
        """The SCN up to which lanes were given everything; -1 = nothing."""
        ...

    @property
    def is_reading(self) -> bool:
        """Whether it has begun, and has not ended."""
        ...

    def write_beside(self, make: Callable[[], Sequence[Change]], size_bytes: int) -> int | None:
        """Give lanes changes that move no position; return their number, None if it has ended.

        `make` is called while no window is given to lanes. `size_bytes`: as they were sent.
        """
        ...

    def is_written(self, number: int) -> bool:
        """Whether everything up to a number is durable."""
        ...


@dataclass(frozen=True, slots=True)
class ReloadStatus:
    """How a reload is."""

    source: str
    where: str
    rows: int  # given to the sink in this attempt
    problem: str  # why it does not get on; "" without one


class Reload:
    """Runs on a thread of its own, again and again until one attempt reaches its end."""

    def __init__(
        self,
        request: ReloadRequest,
        settings: ClientSettings,
        rule_of: RuleOf,
        target_of: Callable[[str], Target | None],
        on_end: Callable[[Reload], None],
    ) -> None:
        """`target_of` returns the session that reads a source, None while there is none."""
        self.request = request
        self._settings, self._rule_of = settings, rule_of
        self._target_of, self._on_end = target_of, on_end
        self._rule: ReloadRule | None = None
        self._rows = 0
        self._problem = ""
        self._ending = threading.Event()
        name = f"databus-sink-{request.sink}-reload"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self) -> None:
        """Ask it to end, also before the end of the table."""
        self._ending.set()

    def join(self) -> None:
        """Wait for its thread; a sink that takes nothing holds it, until the sink ends."""
        self._thread.join()

    @property
    def status(self) -> ReloadStatus:
        """How it is."""
        source, where = self.request.source, self.request.where
        return ReloadStatus(source, where, self._rows, self._problem)

    def passes(self, window: DataWindow) -> None:
        """Take note of a window that lanes are given now; called by the target."""
        rule = self._rule
        if rule is not None:
            rule.passes(window)

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                if self._attempt():
                    log.info("%s: reloaded %d rows of %s", *self._named(self._rows))
                    self._on_end(self)
                    return
            except DatabusError as error:
                self._fail(str(error))
            except Exception as error:  # the next attempt may be better
                log.exception("%s: reloading %s failed", *self._named())
                self._fail(repr(error))
            self._ending.wait(_AGAIN_S)

    def _named(self, *more: object) -> tuple[object, ...]:
        return (self.request.sink, *more, self.request.source)

    def _fail(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("%s: reloading %s waits: %s", *self._named(), problem)
        self._problem = problem

    def _attempt(self) -> bool:
        """Read the snapshot and hand its rows over; return whether all of them are durable."""
        target = self._target_of(self.request.source)
        if target is None or not target.is_reading:
            self._fail("the sink does not read this source now")
            return False
        self._rows = 0
        rule = self._rule = ReloadRule(self.request.source, -1)
        # Only now: what is passed from here on is noted.
        rule.begin_scn = target.passed_scn
        attempt = _Attempt(rule, target, self._ending)
        try:
            return self._read(attempt) and attempt.wait_until(
                lambda: target.is_written(attempt.number)
            )
        finally:
            self._rule = None

    def _read(self, attempt: _Attempt) -> bool:
        """Return whether the end of the snapshot was reached."""
        source, where = self.request.source, self.request.where
        store, name = MemoryCheckpoints(), f"reload {source}"
        store.save(name, (source,), begin(Checkpoint(), LINEAR))
        with DatabusClient(settings=self._settings, checkpoints=store) as client:
            watch = threading.Thread(target=self._watch, args=(client, attempt), daemon=True)
            watch.start()
            try:
                filters = {source: where} if where else None
                windows = client.windows(source, filters=filters, name=name, auto_commit=False)
                with closing(windows) as pages:  # type: ignore[type-var]
                    for page in pages:
                        if page.phase is not Phase.SNAPSHOT:
                            return not attempt.is_over
                        if not self._take(page, attempt):
                            return False
                return attempt.is_at_end and not attempt.is_over
            finally:
                attempt.is_done.set()
                watch.join()

    def _watch(self, client: DatabusClient, attempt: _Attempt) -> None:
        """End reading at the end of a snapshot without rows, and when there is no use in it."""
        while not attempt.is_done.wait(_TICK_S):
            for one in client.registrations:
                self._problem = one.status.problem or self._problem
                # The bootstrap has ended, and all of it was handed over.
                attempt.is_at_end = one.stats.bootstraps > 0 and one.stats.phase is Phase.LIVE
            if attempt.is_at_end or attempt.is_over:
                client.stop()
                return

    def _take(self, page: DataWindow, attempt: _Attempt) -> bool:
        """Hand over the rows of a page; return False if the attempt ends."""
        rule, target = attempt.rule, attempt.target
        if attempt.is_over:
            return False
        of_scn = read_of(page).checkpoint().bootstrap_start_scn
        if of_scn < rule.begin_scn:
            self._fail(
                f"the snapshot is of SCN {of_scn}, and the sink is at {rule.begin_scn}: it begins "
                "when the bootstrap server has come so far"
            )
            return False
        if rule.keys > _MAX_KEYS:
            self._fail(f"more than {_MAX_KEYS} rows have changed since it began: it begins again")
            return False
        newest = max((event.scn for event in page.events), default=-1)
        if target.passed_scn < newest:
            self._problem = f"waits until the sink has passed SCN {newest}"
            if not attempt.wait_until(lambda: target.passed_scn >= newest):
                return False
        size_bytes = read_of(page).size_bytes
        number = target.write_beside(lambda: self._changes(page, rule), size_bytes)
        if number is None:
            return False
        attempt.number = max(attempt.number, number)
        self._rows, self._problem = self._rows + len(page.events), ""
        return True

    def _changes(self, page: DataWindow, rule: ReloadRule) -> Sequence[Change]:
        # One that has ended is told of no window, so it does not know what is newer.
        if rule.is_broken or self._ending.is_set():
            return ()
        fresh = DataWindow(with_events(read_of(page), rule.is_fresh))
        return changes_of(fresh, self._rule_of, with_statements=False)


class _Attempt:
    """One reading of the snapshot."""

    def __init__(self, rule: ReloadRule, target: Target, ending: threading.Event) -> None:
        self.rule, self.target = rule, target
        self.is_done = threading.Event()
        self.is_at_end = False  # all of the snapshot was handed over
        self.number = -1  # of the newest rows that were handed over
        self._ending = ending

    @property
    def is_over(self) -> bool:
        """Whether it cannot reach its end."""
        return self._ending.is_set() or self.rule.is_broken or not self.target.is_reading

    def wait_until(self, is_so: Callable[[], bool]) -> bool:
        """Wait; return False if the attempt is over before."""
        while not self.is_over:
            if is_so():
                return True
            self._ending.wait(_TICK_S)
        return False
