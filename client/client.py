"""`DatabusClient`, the entry point for applications.

    client = DatabusClient(relays=["http://127.0.0.1:11115"], checkpoint_dir="state")

    @client.on("shop.orders")
    def print_order(event):
        print(event.op, event.row)

    client.run()

or, with a consumer object, `client.register(MyConsumer(), ["shop.orders"])`; or, in a
loop, `for window in client.windows("shop.orders")`: see `batches` and `windows_async`, too.

Threads: one for the network, and one dispatcher per registration with callbacks. All
methods are thread-safe.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Self, Unpack

from databus import __version__
from databus.client.checkpoints.store import CheckpointStore
from databus.client.consumer import Consumer
from databus.client.dispatcher.data_window import DataWindow
from databus.client.dispatcher.partition_listener import PartitionListener
from databus.client.finding import ServerFinder
from databus.client.group_registration import make_registration
from databus.client.group_settings import check_group, check_new_group
from databus.client.machines import lifecycle
from databus.client.machines.reachability import Silence
from databus.client.machines.server_set import Servers, changes
from databus.client.machines.states import Lifecycle
from databus.client.monitoring.reporter import (
    MAX_REGISTRATIONS,
    ReportAnswer,
    new_client_id,
    report_died,
    report_of,
)
from databus.client.monitoring.watched import make_reporter, make_server
from databus.client.options import ClientOptions
from databus.client.puller.loop_thread import LoopThread
from databus.client.puller.puller import OnRegistered
from databus.client.registering import (
    Function,
    FunctionConsumer,
    check_same,
    in_use,
    make_store,
    make_subscription,
    settings_of,
)
from databus.client.registration import ClientContext, Registration, RegistrationStatus
from databus.client.subscription import Subscription
from databus.conf.settings import ClientSettings
from databus.daemon.client_report import MAX_TEXT, ClientReport
from databus.daemon.credentials import ServerAccess
from databus.schemas.errors import DatabusError, SettingsError
from databus.schemas.filters import EventFilter

log = logging.getLogger(__name__)

STOP_S = 10.0
_MAX_NAME = 200
_WATCH_S = 1.0


class DatabusClient:
    """Reads changes from relays and delivers them at least once and in order."""

    _is_impatient = False

    def __init__(
        self,
        relays: str | Sequence[str] = (),
        *,
        settings: ClientSettings | None = None,
        checkpoints: CheckpointStore | None = None,
        on_registered: OnRegistered | None = None,
        client_id: str = "",
        **options: Unpack[ClientOptions],
    ) -> None:
        """Take one or several relay URLs and keys of `ClientSettings`, or `settings`.

        `checkpoints` stores checkpoints elsewhere than in `checkpoint_dir`. `on_registered` is
        called on the network thread with a server's ids and schemas, before the first event that
        uses them. `client_id` identifies the client to relays (letters, digits and `_.:-`, at most
        64); the default is a new random id. Raises SettingsError.
        """
        self.settings = settings = settings_of(settings, relays, options)
        ServerAccess(settings.access).check()
        check_group(settings, checkpoints)
        self.id = client_id or new_client_id()
        self.name = settings.name or f"{socket.gethostname()} {os.getpid()}"
        self._started_at = time.time()
        self._keeps_checkpoints = bool(checkpoints or settings.checkpoint_dir)
        self._lock = threading.Lock()
        self._lifecycle = lifecycle.LifecycleMachine()
        self._finder = ServerFinder(settings, self._use)
        self._servers = self._finder.first
        self._loop = LoopThread("databus-client")
        self._ended = threading.Event()
        self._registrations: dict[tuple[str, tuple[str, ...]], Registration] = {}
        self._wanted: dict[tuple[str, tuple[str, ...]], tuple[Subscription, list[Consumer]]] = {}
        self._context = ClientContext(
            settings,
            checkpoints or make_store(settings.checkpoint_dir),
            self._loop,
            Random(),
            time.monotonic,
            self._take_error,
            self._is_impatient,
            on_registered,
            self.id,
            checkpoints is not None,
        )
        self._server = make_server(self, settings, self._loop)
        self._reporter = make_reporter(self, settings, lambda: self._servers.relays, time.monotonic)

    # What to read

    def register(
        self,
        consumer: Consumer | Sequence[Consumer],
        sources: Sequence[str],
        *,
        filters: Mapping[str, EventFilter] | None = None,
        reader_schemas: Mapping[str, str] | None = None,
        name: str = "default",
        batch_rows: int = 0,
    ) -> None:
        """Deliver every change of the sources to a consumer, or to each of several.

        `name` and the exact list of sources identify the checkpoint. Registering the same
        again adds consumers. `filters` and `reader_schemas` (Avro schema texts) are by
        source. With `batch_rows` the windows that are waiting are joined into batches, of at
        most so many rows unless one window has more; the callbacks of a window are made once
        per batch. Raises SettingsError, and CheckpointError if the client is running.
        """
        subscription = make_subscription(sources, filters, reader_schemas, name, batch_rows)
        consumers = [consumer] if isinstance(consumer, Consumer) else list(consumer)
        key = (subscription.name, subscription.sources)
        with self._lock:
            if key in self._registrations:
                raise in_use(subscription)
            known, already = self._wanted.get(key, (subscription, []))
            check_same(known, subscription)
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
        batch_rows: int = 0,
    ) -> Callable[[Function], Function]:
        """Return a decorator: the function is called with each event of the sources.

        With `batch_rows` it is called with the events of each run, a tuple: see `register`.
        """

        def decorate(function: Function) -> Function:
            consumer = FunctionConsumer(function, takes_runs=batch_rows > 0)
            self.register(
                consumer,
                sources,
                filters=filters,
                reader_schemas=reader_schemas,
                name=name,
                batch_rows=batch_rows,
            )
            return function

        return decorate

    def windows(
        self,
        *sources: str,
        filters: Mapping[str, EventFilter] | None = None,
        reader_schemas: Mapping[str, str] | None = None,
        name: str = "default",
        partition_listener: PartitionListener | None = None,
    ) -> Iterator[DataWindow]:
        """Iterate over windows; requesting the next one advances the checkpoint.

        Starts the client if necessary. The iteration ends when the client is stopped, and
        raises the error that ends reading. `partition_listener` is for a group.
        """
        subscription = make_subscription(sources, filters, reader_schemas, name)
        return self._iterate(subscription, partition_listener)

    def batches(
        self,
        *sources: str,
        rows: int = 10_000,
        filters: Mapping[str, EventFilter] | None = None,
        reader_schemas: Mapping[str, str] | None = None,
        name: str = "default",
        partition_listener: PartitionListener | None = None,
    ) -> Iterator[DataWindow]:
        """Iterate as `windows` does, over batches of whole windows.

        A batch has the windows that wait, at most `rows` rows unless one window has more.
        """
        if rows < 1:
            raise SettingsError(f"rows = {rows}: give a number of rows")
        subscription = make_subscription(sources, filters, reader_schemas, name, rows)
        return self._iterate(subscription, partition_listener)

    async def windows_async(
        self,
        *sources: str,
        filters: Mapping[str, EventFilter] | None = None,
        reader_schemas: Mapping[str, str] | None = None,
        name: str = "default",
        partition_listener: PartitionListener | None = None,
    ) -> AsyncGenerator[DataWindow, None]:
        """Iterate as `windows` does, in an asyncio task; the listener may have coroutines."""
        subscription = make_subscription(sources, filters, reader_schemas, name)
        registration = self._open_windows(subscription, partition_listener)
        windows = registration.windows_async()
        try:
            async for window in windows:
                yield window
        finally:
            await windows.aclose()
            self._close_windows(registration)

    # Running

    @property
    def state(self) -> Lifecycle:
        """State of the client."""
        return self._lifecycle.state

    @property
    def error(self) -> BaseException | None:
        """The error that suspended the client, or None."""
        return self._lifecycle.error

    @property
    def is_healthy(self) -> bool:
        """Whether the client runs, or is paused, and no error has stopped it."""
        return self.state in (Lifecycle.RUNNING, Lifecycle.PAUSED)

    def status(self) -> list[RegistrationStatus]:
        """Return the status of each registration."""
        return [registration.status for registration in self.registrations]

    @property
    def registrations(self) -> list[Registration]:
        """The running registrations."""
        with self._lock:
            return list(self._registrations.values())

    @property
    def url(self) -> str:
        """URL of the client's own HTTP server; "" without one, or before the start."""
        return "" if self._server is None else self._server.url

    @property
    def report_answer(self) -> ReportAnswer:
        """Last answers of the relays: the client's lag, and the sources it waits for."""
        return self._reporter.answer

    def silence_of(self, registration: Registration) -> Silence | None:
        """Return since when (`time.time`) no server answers a registration; None if one does."""
        # Silence is measured on the monotonic clock, and reported in wall time.
        found = registration.silence(self.report_answer.silence)
        if found is None:
            return None
        return found._replace(since_s=time.time() - self._context.clock() + found.since_s)

    def report(self) -> ClientReport:
        """Return the client's report, which its relay gets every `report_every_s`."""
        return ClientReport(
            id=self.id,
            name=self.name[:_MAX_NAME],
            state=self.state.value,
            version=__version__,
            url=self.url,
            started_at=self._started_at,
            every_s=self.settings.report_every_s,
            keeps_checkpoints=self._keeps_checkpoints,
            servers_problem=self._finder.problem[:MAX_TEXT],
            registrations=[report_of(one) for one in self.registrations[:MAX_REGISTRATIONS]],
            waits_for=list(self.report_answer.waits_for),
        )

    def start(self) -> None:
        """Start reading and making callbacks; do nothing if started already.

        Raises CheckpointError if a checkpoint is damaged, and stops. Raises SettingsError if
        the client's HTTP server cannot listen, or if the client was stopped.
        """
        if self.state is Lifecycle.SHUT_DOWN:
            raise SettingsError("this client was stopped; make another one")
        try:
            self._handle(lifecycle.Start())
        except BaseException:
            self.stop()  # otherwise it would seem to run but read nothing
            raise
        if self._lifecycle.state is Lifecycle.SHUT_DOWN:  # by another thread meanwhile
            self.stop()

    def run(self) -> None:
        """Start, wait for `stop` or Ctrl-C, and return; raise the error that suspends the client.

        Ctrl-C interrupts only this wait in the main thread, never a callback.
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
        """Finish the current windows, write the checkpoints and join the threads.

        A callback that calls this only requests it. A callback that does not return within
        `timeout_s` is abandoned on its thread, and logged.
        """
        self._handle(lifecycle.ShutDown())
        self._ended.set()
        self._finder.stop()
        registrations = self.registrations
        for registration in registrations:
            registration.stop()  # again: a `start` may have gone on while this began
            if not registration.join(timeout_s):
                name = registration.subscription.name
                log.error("%s: a callback has not returned; its thread is abandoned", name)
        if not any(registration.is_this_thread for registration in registrations):
            self._loop.stop()

    def pause(self) -> None:
        """Make no callbacks until `resume`; reading stops when the buffer is full."""
        self._handle(lifecycle.Pause())

    def resume(self) -> None:
        """Continue after `pause`, or after an error with the failed window."""
        self._handle(lifecycle.Resume())

    def use_servers(
        self,
        relays: Sequence[str],
        bootstrap_servers: Sequence[str] = (),
        must_pick_again: bool = False,
    ) -> None:
        """Use these servers from now on; a request in flight is finished first."""
        self._use(Servers(tuple(relays), tuple(bootstrap_servers)), must_pick_again)

    def _use(self, servers: Servers, must_pick_again: bool = False) -> None:
        with self._lock:
            before, self._servers = self._servers, servers
            registrations = list(self._registrations.values())
        for message in changes(before, servers, must_pick_again=must_pick_again):
            for registration in registrations:
                registration.change_servers(message)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    # Carrying out the lifecycle's instructions

    def _handle(self, message: lifecycle.LifecycleMessage) -> None:
        with self._lock:
            instructions = self._lifecycle.handle(message)
        # Without the lock: `_carry_out` takes it, and it is not reentrant.
        for instruction in instructions:
            self._carry_out(instruction)

    def _carry_out(self, instruction: lifecycle.LifecycleInstruction) -> None:
        registrations = self.registrations
        match instruction:
            case lifecycle.StartReading():
                self._loop.start()
                self._finder.start()
                if self._server is not None:
                    self._server.start()
                self._loop.spawn(self._watch, lambda error: self._handle(lifecycle.Suspend(error)))
                if self.settings.report_every_s:
                    self._loop.spawn(self._reporter.run, report_died)
                self._start_wanted()
            case lifecycle.HoldCallbacks():
                for registration in registrations:
                    registration.hold()
            case lifecycle.Retry():
                for registration in registrations:
                    registration.retry()
            case lifecycle.ReleaseCallbacks():
                self._ended.clear()
                for registration in registrations:
                    registration.release()
            case lifecycle.ReportError():
                self._ended.set()
            case lifecycle.StopReading():
                for registration in registrations:
                    registration.stop()

    def _start_wanted(self) -> None:
        """Start new registrations; all load their checkpoints before the first one starts."""
        with self._lock:
            started = []
            for key, (subscription, consumers) in self._wanted.items():
                if key not in self._registrations:
                    started.append(self._add(subscription, consumers))
            self._wanted.clear()
        # After the loop above: an error in one checkpoint starts none of them.
        for registration in started:
            registration.start()

    def _add(
        self,
        subscription: Subscription,
        consumers: Sequence[Consumer],
        listener: PartitionListener | None = None,
    ) -> Registration:
        servers, context = self._servers, self._context
        registration = make_registration(subscription, consumers, servers, context, listener)
        check_new_group(registration.group, [one.group for one in self._registrations.values()])
        self._registrations[subscription.name, subscription.sources] = registration
        if self.state is Lifecycle.PAUSED:
            registration.hold()
        return registration

    def _iterate(
        self, subscription: Subscription, listener: PartitionListener | None
    ) -> Iterator[DataWindow]:
        registration = self._open_windows(subscription, listener)
        try:
            yield from registration.windows()
        finally:
            self._close_windows(registration)

    def _open_windows(
        self, subscription: Subscription, listener: PartitionListener | None
    ) -> Registration:
        self.start()
        key = (subscription.name, subscription.sources)
        with self._lock:
            # Two readers of one registration would move the same checkpoint.
            if key in self._registrations or key in self._wanted:
                raise in_use(subscription)
            registration = self._add(subscription, (), listener)
        registration.start()
        if self.state is Lifecycle.SHUT_DOWN:
            registration.stop()
        return registration

    def _close_windows(self, registration: Registration) -> None:
        registration.stop()
        registration.let_go()
        with self._lock:
            subscription = registration.subscription
            self._registrations.pop((subscription.name, subscription.sources), None)

    def _take_error(self, registration: Registration, error: DatabusError) -> None:
        registration.error = error
        log.error("%s: stopped by an error: %s", registration.subscription.name, error)
        self._handle(lifecycle.Suspend(error))

    async def _watch(self) -> None:
        """Sample the statistics, and detect callbacks that do not return."""
        interval_s = min(_WATCH_S, self.settings.callback_budget_s / 4)
        while True:
            await asyncio.sleep(interval_s)
            for registration in self.registrations:
                registration.stats.sample()
                error = registration.overdue() if self.state is Lifecycle.RUNNING else None
                if error is not None:
                    self._take_error(registration, error)
