"""The way in: `DatabusClient`.

    client = DatabusClient(relays=["http://127.0.0.1:11115"], checkpoint_dir="state")

    @client.on("shop.orders")
    def print_order(event):
        print(event.op, event.row)

    client.run()

or, with a consumer of one's own, `client.register(MyConsumer(), ["shop.orders"])`;
or a loop, `for window in client.windows("shop.orders")`, and the same with
`async for window in client.windows_async("shop.orders")`.

Threads: one for the network, one dispatcher for each registration with
callbacks. All methods may be called from any thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Self

from databus import __version__
from databus.client.checkpoints.store import CheckpointStore, FileCheckpoints, MemoryCheckpoints
from databus.client.consumer import Consumer
from databus.client.dispatcher.callbacks import Clock, DataWindow
from databus.client.machines.lifecycle import (
    HoldCallbacks,
    LifecycleInstruction,
    LifecycleMachine,
    LifecycleMessage,
    Pause,
    ReleaseCallbacks,
    ReportError,
    Resume,
    Retry,
    ShutDown,
    Start,
    StartReading,
    StopReading,
    Suspend,
)
from databus.client.machines.reach import Silence
from databus.client.machines.server_set import ReplaceServers, Servers
from databus.client.machines.states import Lifecycle
from databus.client.monitoring.reporter import (
    MAX_REGISTRATIONS,
    Reporter,
    Told,
    new_client_id,
    report_of,
    text_for_relays,
)
from databus.client.puller.loop_thread import LoopThread
from databus.client.puller.puller import OnRegistered
from databus.client.puller.transport import make_transport
from databus.client.registering import (
    EventCallback,
    FunctionConsumer,
    make_subscription,
    settings_of,
)
from databus.client.registration import ClientContext, Registration, RegistrationStatus
from databus.client.subscription import Subscription
from databus.conf.settings import ClientSettings
from databus.daemon.client_report import ClientReport
from databus.daemon.credentials import ServerAccess
from databus.schemas.errors import DatabusError, SettingsError
from databus.schemas.filters import EventFilter

if TYPE_CHECKING:
    from databus.client.monitoring.http import ClientServer

log = logging.getLogger(__name__)

STOP_S = 10.0
_MAX_NAME = 200
_WATCH_S = 1.0


class DatabusClient:
    """Reads changes from relays and hands them over, at least once and in order."""

    def __init__(
        self,
        relays: Sequence[str] = (),
        *,
        settings: ClientSettings | None = None,
        checkpoints: CheckpointStore | None = None,
        rng: Random | None = None,
        clock: Clock = time.monotonic,
        is_impatient: bool = False,
        on_registered: OnRegistered | None = None,
        client_id: str = "",
        **options: Any,
    ) -> None:
        """Take relay URLs and any of `ClientSettings`' keys as options, or the settings.

        `checkpoints` keeps checkpoints elsewhere than in `checkpoint_dir`. An
        impatient client fails when every relay refuses what it asks for,
        instead of asking again until somebody changes the relays.
        `on_registered` is called on the network's thread with what a server
        said of ids and schemas, before any event of theirs is read. `client_id`
        is whom relays see asking (letters, digits and `_.:-`, 64 at most);
        without it a new one. Raises SettingsError.
        """
        self.settings = settings = settings_of(settings, relays, options)
        ServerAccess(settings.access).check()
        self.id = client_id or new_client_id()
        self.name = settings.name or f"{socket.gethostname()} {os.getpid()}"
        self._started_at = time.time()
        self._lock = threading.Lock()
        self._lifecycle = LifecycleMachine()
        self._servers = Servers(settings.relays, settings.bootstrap_servers)
        self._loop = LoopThread("databus-client")
        self._ended = threading.Event()
        self._registrations: dict[tuple[str, tuple[str, ...]], Registration] = {}
        self._wanted: dict[tuple[str, tuple[str, ...]], tuple[Subscription, list[Consumer]]] = {}
        self._context = ClientContext(
            settings,
            checkpoints or _make_store(settings.checkpoint_dir),
            self._loop,
            rng or Random(),
            clock,
            self._take_error,
            is_impatient,
            on_registered,
            self.id,
        )
        self._server = _make_server(self, settings, self._loop)
        self._reporter = self._make_reporter(clock)

    # What to read

    def register(
        self,
        consumer: Consumer | Sequence[Consumer],
        sources: Sequence[str],
        *,
        filters: Mapping[str, EventFilter] | None = None,
        reader_schemas: Mapping[str, str] | None = None,
        name: str = "default",
    ) -> None:
        """Give every change of the sources to the consumer, or to each of several.

        `name` and the exact list of sources name the checkpoint. Registering
        the same again adds consumers. `filters` and `reader_schemas` (Avro
        schema texts) are by source. Raises SettingsError, and when the client
        runs CheckpointError.
        """
        subscription = make_subscription(sources, filters, reader_schemas, name)
        consumers = [consumer] if isinstance(consumer, Consumer) else list(consumer)
        key = (subscription.name, subscription.sources)
        with self._lock:
            if key in self._registrations:
                raise _in_use(subscription)
            known, already = self._wanted.get(key, (subscription, []))
            if known != subscription:
                raise SettingsError(
                    f"registration {name!r} of {', '.join(sources)} has other filters or schemas "
                    "already; give this one another name"
                )
            self._wanted[key] = (subscription, [*already, *consumers])
            is_running = self.state in (Lifecycle.RUNNING, Lifecycle.PAUSED)
        if is_running:
            self._start_wanted()

    def on(
        self,
        *sources: str,
        filters: Mapping[str, EventFilter] | None = None,
        reader_schemas: Mapping[str, str] | None = None,
        name: str = "default",
    ) -> Callable[[EventCallback], EventCallback]:
        """Decorate a function that is to be called with each event of the sources."""

        def decorate(function: EventCallback) -> EventCallback:
            consumer = FunctionConsumer(function)
            self.register(
                consumer, sources, filters=filters, reader_schemas=reader_schemas, name=name
            )
            return function

        return decorate

    def windows(
        self,
        *sources: str,
        filters: Mapping[str, EventFilter] | None = None,
        reader_schemas: Mapping[str, str] | None = None,
        name: str = "default",
    ) -> Iterator[DataWindow]:
        """Iterate over windows; the checkpoint advances when the next one is asked for.

        Starts the client if need be. Ends when the client is stopped; raises
        the error that ends the reading.
        """
        registration = self._open_windows(make_subscription(sources, filters, reader_schemas, name))
        assert registration.iterator is not None
        try:
            yield from registration.iterator.windows()
        finally:
            self._close_windows(registration)

    async def windows_async(
        self,
        *sources: str,
        filters: Mapping[str, EventFilter] | None = None,
        reader_schemas: Mapping[str, str] | None = None,
        name: str = "default",
    ) -> AsyncGenerator[DataWindow, None]:
        """Iterate as `windows` does, in an asyncio task."""
        registration = self._open_windows(make_subscription(sources, filters, reader_schemas, name))
        assert registration.iterator is not None
        windows = registration.iterator.windows_async()
        try:
            async for window in windows:
                yield window
        finally:
            await windows.aclose()
            self._close_windows(registration)

    # Running

    @property
    def state(self) -> Lifecycle:
        """What the client is doing."""
        return self._lifecycle.state

    @property
    def error(self) -> BaseException | None:
        """The error that suspended it, or None."""
        return self._lifecycle.error

    @property
    def is_healthy(self) -> bool:
        """Whether it runs (or was paused by somebody) and no error has stopped it."""
        return self.state in (Lifecycle.RUNNING, Lifecycle.PAUSED)

    def status(self) -> list[RegistrationStatus]:
        """Return how each registration is."""
        return [registration.status for registration in self.registrations]

    @property
    def registrations(self) -> list[Registration]:
        """What is being read, for whoever shows it."""
        with self._lock:
            return list(self._registrations.values())

    @property
    def url(self) -> str:
        """Where its own HTTP server listens; empty where it has none, or before the start."""
        return "" if self._server is None else self._server.url

    @property
    def told(self) -> Told:
        """What its relays said of late: how far behind it is, and which sources it waits for."""
        return self._reporter.told

    def silence_of(self, registration: Registration) -> Silence | None:
        """Return since when, by `time.time`, no server answers a registration; None if one does."""
        found = registration.silence(self.told.silence)
        if found is None:
            return None
        return found._replace(since_s=time.time() - self._context.clock() + found.since_s)

    def report(self) -> ClientReport:
        """Return what the client tells of itself, every `report_every_s` to its relay, too."""
        return ClientReport(
            id=self.id,
            name=self.name[:_MAX_NAME],
            state=self.state.value,
            version=__version__,
            url=self.url,
            started_at=self._started_at,
            every_s=self.settings.report_every_s,
            registrations=[report_of(one) for one in self.registrations[:MAX_REGISTRATIONS]],
            waits_for=list(self.told.waits_for),
        )

    def start(self) -> None:
        """Begin to read and to call back; does nothing when it has begun.

        Raises CheckpointError when a checkpoint is damaged, and is stopped then;
        SettingsError when its own HTTP server cannot listen, or when it was
        stopped: make another client.
        """
        if self.state is Lifecycle.SHUT_DOWN:
            raise SettingsError("this client was stopped; make another one")
        try:
            self._handle(Start())
        except BaseException:
            self.stop()  # or it would seem to run, and read nothing
            raise

    def run(self) -> None:
        """Start, and return when it is stopped, with Ctrl-C too; raises the error that suspends it.

        What Ctrl-C interrupts is this waiting, in the main thread; no callback is cut short.
        """
        error = None
        try:
            self.start()
            self._ended.wait()
            error = self.error
        except KeyboardInterrupt:
            log.info("interrupted: stopping")
        finally:
            self.stop()
        if error is not None:
            raise error

    def stop(self, timeout_s: float = STOP_S) -> None:
        """End: finish the windows in hand, write the checkpoints, join the threads.

        From within a callback it only asks for that. A callback that does not
        come back within `timeout_s` is left behind on its thread, and logged.
        """
        self._handle(ShutDown())
        self._ended.set()
        with self._lock:
            registrations = list(self._registrations.values())
        for registration in registrations:
            if not registration.join(timeout_s):
                name = registration.subscription.name
                log.error("%s: a callback has not come back; its thread is left behind", name)
        if not any(registration.is_this_thread for registration in registrations):
            self._loop.stop()

    def pause(self) -> None:
        """Make no callbacks until `resume`; the buffer fills, then the reading stops."""
        self._handle(Pause())

    def resume(self) -> None:
        """Go on after `pause`, or after an error, with the window that failed."""
        self._handle(Resume())

    def use_servers(
        self,
        relays: Sequence[str],
        bootstrap_servers: Sequence[str] = (),
        must_pick_again: bool = False,
    ) -> None:
        """Read from these servers from now on; a request in flight ends first."""
        servers = Servers(tuple(relays), tuple(bootstrap_servers))
        with self._lock:
            self._servers = servers
            registrations = list(self._registrations.values())
        for registration in registrations:
            registration.change_servers(ReplaceServers(servers, must_pick_again))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    # What the lifecycle asks for

    def _handle(self, message: LifecycleMessage) -> None:
        with self._lock:
            instructions = self._lifecycle.handle(message)
        for instruction in instructions:
            self._carry_out(instruction)

    def _carry_out(self, instruction: LifecycleInstruction) -> None:
        with self._lock:
            registrations = list(self._registrations.values())
        match instruction:
            case StartReading():
                self._loop.start()
                if self._server is not None:
                    self._server.start()
                self._loop.spawn(self._watch, lambda error: self._handle(Suspend(error)))
                if self.settings.report_every_s:
                    self._loop.spawn(self._reporter.run, _report_died)
                self._start_wanted()
            case HoldCallbacks():
                for registration in registrations:
                    registration.hold()
            case Retry():
                for registration in registrations:
                    registration.retry()
            case ReleaseCallbacks():
                self._ended.clear()
                for registration in registrations:
                    registration.release()
            case ReportError():
                self._ended.set()
            case StopReading():
                for registration in registrations:
                    registration.stop()

    def _start_wanted(self) -> None:
        """Start what was registered and does not run yet; all of it loads before any starts."""
        with self._lock:
            started = []
            for key, (subscription, consumers) in self._wanted.items():
                if key not in self._registrations:
                    started.append(self._add(subscription, consumers))
            self._wanted.clear()
        for registration in started:
            registration.start()

    def _add(self, subscription: Subscription, consumers: Sequence[Consumer]) -> Registration:
        registration = Registration(subscription, consumers, self._servers, self._context)
        self._registrations[subscription.name, subscription.sources] = registration
        if self.state is Lifecycle.PAUSED:
            registration.hold()
        return registration

    def _open_windows(self, subscription: Subscription) -> Registration:
        self.start()
        key = (subscription.name, subscription.sources)
        with self._lock:
            if key in self._registrations or key in self._wanted:
                raise _in_use(subscription)
            registration = self._add(subscription, ())
        registration.start()
        return registration

    def _close_windows(self, registration: Registration) -> None:
        registration.stop()
        registration.let_go()
        with self._lock:
            subscription = registration.subscription
            self._registrations.pop((subscription.name, subscription.sources), None)

    def _take_error(self, registration: Registration, error: DatabusError) -> None:
        registration.error = error
        name = registration.subscription.name
        log.error("%s: stopped by an error that needs somebody: %s", name, error)
        self._handle(Suspend(error))

    async def _watch(self) -> None:
        """Look out for callbacks that do not come back, and at the statistics."""
        interval_s = min(_WATCH_S, self.settings.callback_budget_s / 4)
        while True:
            await asyncio.sleep(interval_s)
            registrations = self.registrations
            for registration in registrations:
                registration.stats.sample()
            if self.state is not Lifecycle.RUNNING:
                continue
            for registration in registrations:
                error = registration.overdue()
                if error is not None:
                    self._take_error(registration, error)

    def _make_reporter(self, clock: Clock) -> Reporter:
        return Reporter(
            self.settings.report_every_s,
            f"/api/v1/clients/{self.id}",
            lambda: text_for_relays(self.report()),
            self._used_relays,
            lambda: self._servers.relays,
            lambda: make_transport(self.settings, self.id),
            clock,
        )

    def _used_relays(self) -> list[str]:
        return [relay for one in self.registrations if (relay := one.relay) is not None]


def _make_server(
    client: DatabusClient, settings: ClientSettings, loop: LoopThread
) -> ClientServer | None:
    if settings.http is None:
        return None
    # Most clients have none, and what it is made of is slow to import.
    from databus.client.monitoring.http import ClientServer

    return ClientServer(client, settings.http, loop)


def _report_died(error: BaseException) -> None:
    """Log a defect of ours: reading goes on without reports."""
    log.error("no more reports to relays: %r", error, exc_info=error)


def _in_use(subscription: Subscription) -> SettingsError:
    return SettingsError(
        f"registration {subscription.name!r} of {', '.join(subscription.sources)} is being read "
        "already; give this one another name"
    )


def _make_store(directory: Path | None) -> CheckpointStore:
    return MemoryCheckpoints() if directory is None else FileCheckpoints(directory)
