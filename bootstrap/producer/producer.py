"""The producer: a client of the relay that fills a store.

Each window's rows, log and position are written in one transaction, so each window
is applied exactly once, however the process ends. Ids and schemas from the relay are
stored before any event that uses them is requested.

When no relay holds the next window any more, the producer has lagged out. It records
that, the store is not served, and reading restarts at the oldest window that a relay
holds; the seeder then reads the tables again.

A table that the relay has stopped alone is left out, and its source is not served: the others are
read on. When the relay captures it again, it is seeded again.

A source may be added to the relay at a newer SCN than the store's: with it, the relay refuses the
store's position. It is left out, until the store has the other sources' windows up to there.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random

from databus.bootstrap.producer.stopped_tables import StoppedTables
from databus.bootstrap.seeder.job import store_path as default_store_path
from databus.bootstrap.seeder.row_identity import identity_in
from databus.bootstrap.store.file import WriteLease
from databus.bootstrap.store.retention import Retention
from databus.bootstrap.store.store import Store, StoredEvent
from databus.bootstrap.store.values import NOTHING_YET, Position, SourceStatus
from databus.client.consumer import Consumer, DataEvent
from databus.client.impatient_client import ImpatientClient
from databus.client.machines.backoff import BackOff
from databus.client.monitoring.reporter import new_client_id
from databus.client.subscription import Bindings, SourceBinding
from databus.conf.settings import BootstrapSettings, ClientSettings, PhysicalSourceSettings
from databus.daemon.client_report import PRODUCER_NAME
from databus.daemon.faults import trace_of
from databus.daemon.log_setup import about
from databus.schemas.avro_rows import captured_table
from databus.schemas.checkpoint import Checkpoint, LogWindow
from databus.schemas.errors import (
    ConsumerError,
    DatabusError,
    SchemaNotFoundError,
    ScnNotFoundError,
    TableStoppedError,
)
from databus.schemas.scn import MAX_SCN

log = logging.getLogger(__name__)

CHECKPOINT_EVERY_S = 0.1  # for windows without events; the others save their position themselves
STOP_S = 10.0
LOOK_EVERY_S = 5.0  # whether a stopped table is captured again
_SEEDED = (SourceStatus.SEEDING, SourceStatus.SEEDING_CATCH_UP, SourceStatus.ACTIVE)


@dataclass(frozen=True, slots=True)
class ProducerStatus:
    """A producer's status. `fell_off` says what happened when it last lagged out of the ring."""

    name: str  # of the physical source
    is_running: bool
    scn: int
    timestamp_ns: int  # of the commit of that window
    server: str | None
    windows: int  # windows applied since the start
    events: int
    fell_off: str
    problem: str


class WindowWriter(Consumer):
    """Applies windows to a store. It is also the client's checkpoint store.

    Rows and position are one transaction, hence one object. Used by one thread at a time.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._events: list[tuple[int, StoredEvent]] = []
        self._timestamp_ns = 0
        self._has_log = False  # whether the start of the log is recorded
        self._log_scn = NOTHING_YET  # of the newest window of the relay's log that is kept
        self._goal = MAX_SCN, _do_nothing
        self.position = store.position()
        self.windows = 0
        self.event_count = 0

    def call_at(self, scn: int, act: Callable[[], None]) -> None:
        """Call a function, perhaps repeatedly, when the position has reached an SCN."""
        self._goal = scn, act

    # The consumer interface

    def on_data_event(self, event: DataEvent) -> None:
        """Add an event to the current window."""
        stored = StoredEvent(
            event.scn,
            event.wire_key,
            event.is_delete,
            event.wire_bytes(),
            event.is_truncate,
            event.has_absent,
        )
        self._events.append((event.src_id, stored))
        self._timestamp_ns = event.timestamp_ns

    def on_end_data_event_sequence(self, scn: int) -> None:
        """Apply the current window."""
        self._apply(scn, self._timestamp_ns, self._events)
        self._events.clear()

    def on_checkpoint(self, scn: int) -> None:
        """Record the start of the log at the very first window."""
        self._begin_log(scn)

    def on_rollback(self, scn: int) -> None:  # noqa: ARG002 - a callback
        """Drop the current window: it will be delivered again."""
        self._events.clear()

    # The checkpoint store interface

    def load(self, name: str, sources: Sequence[str]) -> Checkpoint | None:  # noqa: ARG002
        """Return the store's position as a checkpoint, or None when nothing was applied yet."""
        self.position = position = self._store.position()
        self._has_log = position.scn != NOTHING_YET
        if position.scn == NOTHING_YET:
            return None
        window = self._store.log_window()
        self._log_scn = NOTHING_YET if window is None else window[0]
        checkpoint = Checkpoint.at(position.scn, position.timestamp_ns)
        # With mark and log window a relay of another log refuses the position.
        return checkpoint.with_mark(self._store.mark()).with_log_window(window)

    def save(self, name: str, sources: Sequence[str], checkpoint: Checkpoint) -> None:  # noqa: ARG002
        """Advance the position over windows without events, and keep what proves it."""
        window = checkpoint.log_window
        if window is not None and window[0] <= self._log_scn:
            window = None
        if checkpoint.window_scn > self.position.scn:
            self._apply(checkpoint.window_scn, checkpoint.ts_ns, (), window)
        elif window is not None:
            self._store.prove(window)
        if window is not None:
            self._log_scn = window[0]

    def _begin_log(self, scn: int) -> None:
        if not self._has_log:
            # Windows before the relay's oldest are unknown: all that
            # is certain is that none is missing from this one on.
            self._store.begin_log(scn - 1)
            self._has_log = True

    def _apply(
        self,
        scn: int,
        timestamp_ns: int,
        events: Sequence[tuple[int, StoredEvent]],
        log_window: LogWindow | None = None,
    ) -> None:
        self._begin_log(scn)
        if self._store.apply_window(scn, timestamp_ns, events, log_window):
            self.windows += 1
            self.event_count += len(events)
            self.position = Position(scn, timestamp_ns)
        _log_notes(self._store)
        for name in self._store.activate_caught_up():
            log.info("%s: seeded, and served from now on", name, extra=about(source=name, scn=scn))
        goal, act = self._goal
        if scn >= goal:
            act()


def _do_nothing() -> None:
    pass


def _log_notes(store: Store) -> None:
    """Log which sources a statement has marked for seeding again."""
    for name, scn, problem in store.notes:
        log.warning("%s: %s", name, problem, extra=about(source=name, scn=scn))
    store.notes.clear()


class Producer:
    """Fills the store of one physical source in the background, and deletes old data.

    The public methods may be called from any thread.
    """

    def __init__(
        self,
        settings: BootstrapSettings,
        physical: PhysicalSourceSettings,
        store_path: Path | None = None,
        now_ns: Callable[[], int] = time.time_ns,
        lease: WriteLease | None = None,
    ) -> None:
        """`store_path` overrides the default path; `now_ns` is the wall clock.

        The producer writes under the `lease`, if there is one.
        """
        self._settings = settings
        self._physical = physical
        self._path = store_path or default_store_path(settings, physical)
        self._now_ns = now_ns
        self._lease = lease
        self._sources = physical.source_names
        self._back_off = BackOff(settings.back_off, Random())
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._is_paused = False
        self._client_id = new_client_id()  # shared by the clients that it makes one after another
        self._client: ImpatientClient | None = None
        self._writer: WindowWriter | None = None
        self._problem = self._retention_problem = self._fell_off = ""
        self._failed_scn: int | None = None  # the window that caused the problem, if any
        # Up to which SCN the sources that are not seeded are left out; None: all are read.
        self._left_out_until: int | None = None
        self._stopped = StoppedTables(physical.name, settings.relays, settings.relay_access)
        self._read_without: frozenset[str] = frozenset()  # by the current client
        self._threads = [
            threading.Thread(target=target, name=f"{what}-{physical.name}", daemon=True)
            for what, target in (
                ("producer", self._run),
                ("retention", self._retain),
                ("stopped-tables", self._look),
            )
        ]

    def start(self) -> None:
        """Start the threads. Call it once."""
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float | None = None) -> bool:
        """Stop after the current window; return whether all threads stopped in time."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            self._stopping.set()
            client = self._client
        if client is not None:
            client.stop(STOP_S if timeout_s is None else timeout_s)
        begun = [thread for thread in self._threads if thread.ident is not None]
        for thread in begun:
            thread.join(None if end_s is None else max(0.0, end_s - time.monotonic()))
        return not any(thread.is_alive() for thread in begun)

    def pause(self) -> None:
        """Apply no more windows until `resume`. A long pause may make the producer lag out."""
        self._set_paused(True)

    def resume(self) -> None:
        """Continue after `pause`."""
        self._set_paused(False)

    @property
    def is_paused(self) -> bool:
        """Whether it is paused."""
        return self._is_paused

    @property
    def problem(self) -> str:
        """Why it does not work; empty when it does."""
        return self.status().problem

    @property
    def is_healthy(self) -> bool:
        """Whether it runs and has no problem."""
        status = self.status()
        return status.is_running and not status.problem

    def status(self) -> ProducerStatus:
        """Return a status snapshot."""
        with self._lock:
            client, writer = self._client, self._writer
        reading = client.status() if client is not None else []
        server = reading[0].server if reading else None
        client_problem = (reading[0].problem or "") if reading else ""
        position = writer.position if writer is not None else None
        return ProducerStatus(
            self._physical.name,
            self._threads[0].is_alive(),
            NOTHING_YET if position is None else position.scn,
            0 if position is None else position.timestamp_ns,
            server,
            0 if writer is None else writer.windows,
            0 if writer is None else writer.event_count,
            self._fell_off,
            self._current_problem(writer)
            or client_problem
            or self._retention_problem
            or "; ".join(self._stopped.problems.values()),
        )

    def _set_paused(self, is_paused: bool) -> None:
        with self._lock:
            self._is_paused = is_paused
            if self._client is not None:
                act = self._client.pause if is_paused else self._client.resume
                act()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with closing(self._open()) as store:
                    self._produce(store)
            except Exception as error:
                # A thread has no caller to raise to: it logs the error and tries again.
                self._note(error)
                self._stopping.wait(self._back_off.next_s())

    def _open(self) -> Store:
        return Store.open(self._path, now_ns=self._now_ns, lease=self._lease)

    def _produce(self, store: Store) -> None:
        """Read until stopped; raise the error that ends the reading."""
        writer = WindowWriter(store)
        stopped = self._stopped.problems
        seeded = [state.name for state in store.sources() if state.status in _SEEDED]
        listed = [name for name in self._sources if name in seeded and name not in stopped]
        until, self._left_out_until = self._left_out_until, None
        client = ImpatientClient(
            settings=_client_settings(self._settings),
            checkpoints=writer,
            on_registered=self._register,
            client_id=self._client_id,
        )
        known = [name for name in self._sources if name not in stopped]
        sources = known if until is None else listed
        if until is not None:
            writer.call_at(until, client.stop)
        client.register(writer, sources, name=self._physical.name)
        try:
            with self._lock:
                if self._stopping.is_set():
                    return
                self._client, self._writer = client, writer
                self._read_without = frozenset(stopped)
                client.start()  # before anybody can stop it
                # It may have been paused while there was no client.
                if self._is_paused:
                    client.pause()
            client.run()
        except TableStoppedError as error:
            if not set(sources) > {error.source}:
                raise  # nothing else is to be read
            self._stop_table(store, error)
        except ScnNotFoundError as error:
            has_others = 0 < len(listed) < len(sources)
            if has_others and error.oldest - 1 > store.position().scn:
                self._leave_out(store, error, [name for name in sources if name not in listed])
            else:
                self._fall_off(store, error)
        finally:
            with self._lock:
                self._client = None

    def _register(self, bindings: Bindings) -> None:
        """Store the ids and schemas that the relay sent. Runs on the client's network thread."""
        with closing(self._open()) as store:
            src_ids = {bound.name: bound.src_id for bound in bindings.values()}
            store.add_sources(src_ids, self._stopped.problems)
            for bound in bindings.values():
                self._add_schemas(store, bound)
        if self._failed_scn is None:
            self._problem = ""

    def _add_schemas(self, store: Store, bound: SourceBinding) -> None:
        """Store the schemas. If they change the key or the table, the source is seeded again.

        Rows under their old keys, and rows of the old table, become tombstones then.
        """
        known = [text for _, _, text in store.schemas([bound.src_id])]
        fresh = [s.text for s in bound.schemas if s.text not in known]
        store.add_schemas(bound.src_id, [(s.version, s.text) for s in bound.schemas])
        _log_notes(store)
        changed = _change(known[-1], fresh) if known else ""
        if changed and store.source(bound.name).status in _SEEDED:
            text = "the %s of %s has changed: it is seeded again"
            log.warning(text, changed, bound.name, extra=about(source=bound.name))
            store.reset_source(bound.name)

    def _stop_table(self, store: Store, error: TableStoppedError) -> None:
        """Read on without a table that the relay has stopped."""
        self._stopped.add(error)
        name, scn = self._physical.name, store.position().scn
        known = about(physical_source=name, source=error.source, scn=scn)
        log.error("%s: %s; the other sources are read on", name, error, extra=known)

    def _look(self) -> None:
        """Read stopped tables again as soon as a relay captures them."""
        while not self._stopping.wait(LOOK_EVERY_S):
            if self._stopped.problems:
                self._stopped.look()
            with self._lock:
                client, without = self._client, self._read_without
            if client is not None and without - self._stopped.problems.keys():
                client.stop(STOP_S)  # `_run` makes another one

    def _leave_out(self, store: Store, error: ScnNotFoundError, names: Sequence[str]) -> None:
        """Read without some sources up to the oldest SCN that the relay has with them."""
        self._left_out_until = error.oldest - 1
        text = "%s: the relay has %s only after scn %d: the other sources are read up to there"
        name, scn = self._physical.name, store.position().scn
        known = about(physical_source=name, scn=scn)
        log.info(text, name, ", ".join(names), self._left_out_until, extra=known)

    def _fall_off(self, store: Store, error: ScnNotFoundError) -> None:
        scn = store.position().scn
        self._fell_off = f"lagged out after scn {scn}; the oldest held was {error.oldest_text}"
        name = self._physical.name
        known = about(physical_source=name, scn=scn)
        log.error("%s: %s; all sources are seeded again", name, self._fell_off, extra=known)
        store.fall_off(scn, error.oldest)

    def _current_problem(self, writer: WindowWriter | None) -> str:
        scn = self._failed_scn
        is_past = scn is not None and writer is not None and writer.position.scn >= scn
        return "" if is_past else self._problem

    def _note(self, error: Exception) -> None:
        if self._writer is not None and self._writer.windows:
            self._back_off.reset()  # it worked for a while
        self._failed_scn = error.scn if isinstance(error, ConsumerError) else None
        if isinstance(error, ConsumerError) and isinstance(error.__cause__, DatabusError):
            error = error.__cause__  # the store's own message
        text = str(error) if isinstance(error, DatabusError) else f"internal error: {error!r}"
        if text != self._problem:
            name = self._physical.name
            scn = self._writer.position.scn if self._writer is not None else None
            known = about(physical_source=name, scn=scn, error=error)
            if isinstance(error, SchemaNotFoundError):
                # The relay takes a new table in just now.
                log.info("%s: %s yet; trying again", name, text, extra=known)
            else:
                log.error("%s: %s; trying again", name, text, exc_info=trace_of(error), extra=known)
        self._problem = text

    def _retain(self) -> None:
        while not self._stopping.wait(self._settings.retention_every_s):
            try:
                with closing(self._open()) as store:
                    retention = Retention(store, self._settings, self._now_ns)
                    # Between two steps the producer may write.
                    while retention.step() and not self._stopping.wait(0.005):
                        pass
                self._retention_problem = ""
            except Exception as error:
                name, text = self._physical.name, "%s: deleting old data failed: %s"
                known = about(physical_source=name)
                log.error(text, name, error, exc_info=trace_of(error), extra=known)
                self._retention_problem = str(error) or repr(error)


def _change(known: str, fresh: Sequence[str]) -> str:
    """Return which change of the newest known schema makes the stored rows wrong, or ""."""
    identity = identity_in(known)
    if identity is not None and any(identity_in(text) != identity for text in fresh):
        return "primary key"
    # Only a relay with a new data folder captures a source from another table.
    table = captured_table(known)
    if table is not None and any(captured_table(text) not in (None, table) for text in fresh):
        return "table"
    return ""


def _client_settings(settings: BootstrapSettings) -> ClientSettings:
    return ClientSettings(
        name=f"{PRODUCER_NAME} {socket.gethostname()}",
        relays=settings.relays,
        access=settings.relay_access,
        start="earliest",
        # A window that fails is tried again by a new client, starting at the store's position.
        callback_retries=0,
        checkpoint_every_s=CHECKPOINT_EVERY_S,
        back_off=settings.back_off,
    )
