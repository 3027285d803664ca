"""The life of a client: its registrations, its threads, its servers, its state.

What an application asks it to read is in `client`, whose class is built on this one.

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
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Self, Unpack

from databus import __version__
from databus.client.checkpoints.store import CheckpointStore
from databus.client.consumer import Consumer
from databus.client.dispatcher.coroutines import Coroutines
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
from databus.client.registering import in_use, make_store, settings_of
from databus.client.registration import ClientContext, Registration, RegistrationStatus
from databus.client.subscription import Subscription
from databus.conf.settings import ClientSettings
from databus.daemon.client_report import MAX_TEXT, ClientReport
from databus.daemon.credentials import ServerAccess
from databus.schemas.errors import ConsumerError, DatabusError, SettingsError

if TYPE_CHECKING:  # most clients have no sinks
    from databus.client.sinks.running.registered import RegisteredSinks

log = logging.getLogger(__name__)

STOP_S = 10.0
_MAX_NAME = 200
_WATCH_S = 1.0


class RunningClient:
    """Starts, pauses, resumes and stops registrations, and reports on them."""

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
        self._sought: dict[tuple[str, tuple[str, ...]], str] = {}  # places to begin at
        self._sinks: RegisteredSinks | None = None
        self._coroutines = Coroutines()
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

    # Running

    @property
    def state(self) -> Lifecycle:
        """State of the client."""
        return self._lifecycle.state

    @property
    def error(self) -> BaseException | None:
        """The error that stopped the client, or one of its registrations; None without one."""
        stopped = (one.error for one in self.registrations if one.error is not None)
        return self._lifecycle.error or next(stopped, None)

    @property
    def shown_state(self) -> Lifecycle:
        """The state as relays, metrics and `/health` have it: suspended once a registration is.

        Who watches must not take a client for well of which a part has stopped.
        """
        goes_on = self.state in (Lifecycle.RUNNING, Lifecycle.PAUSED)
        return Lifecycle.SUSPENDED if goes_on and self.error is not None else self.state

    @property
    def is_healthy(self) -> bool:
        """Whether the client runs, or is paused, and no error has stopped a registration."""
        return self.state in (Lifecycle.RUNNING, Lifecycle.PAUSED) and self.error is None

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
            state=self.shown_state.value,
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
        elif self._sinks is not None:
            self._sinks.start()

    def run(self) -> None:
        """Start, wait for `stop` or Ctrl-C, and return; raise the error that stops the client.

        An error stops one registration; it stops the client if no other one goes on. Raises
        SettingsError if there is no registration.

        Ctrl-C interrupts only this wait in the main thread, never a callback.
        """
        error = None
        self._check_registered()
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

        A callback that calls this only requests it; so does who calls it in the event loop of
        `async with`, which the callbacks need until they end. A callback that does not return
        within `timeout_s` is abandoned on its thread, and logged.
        """
        if self._sinks is not None:
            self._sinks.stop()  # while what they have written can be committed
        self._handle(lifecycle.ShutDown())
        self._ended.set()
        self._finder.stop()
        registrations = self.registrations
        for registration in registrations:
            registration.stop()  # again: a `start` may have gone on while this began
            if self._coroutines.is_in_loop:
                continue
            if not registration.join(timeout_s):
                name = registration.subscription.name
                log.error("%s: a callback has not returned; its thread is abandoned", name)
        if self._coroutines.is_in_loop:
            return
        if not any(registration.is_this_thread for registration in registrations):
            self._loop.stop()
            self._coroutines.stop()

    def pause(self) -> None:
        """Make no callbacks until `resume`; reading stops when the buffer is full."""
        self._handle(lifecycle.Pause())

    def resume(self) -> None:
        """Continue after `pause`, and what an error has stopped with the failed window."""
        stopped = [one for one in self.registrations if one.error is not None]
        for registration in stopped:
            registration.retry()
        self._handle(lifecycle.Resume())
        if self.state is Lifecycle.RUNNING:
            for registration in stopped:
                registration.release()

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

    async def run_async(self) -> None:
        """Run as `run` does, in an asyncio task, until `stop` or until the task is cancelled."""
        self._check_registered()
        async with self:
            await asyncio.to_thread(self._ended.wait)
            error = self.error
        if error is not None:
            raise error

    def _check_registered(self) -> None:
        with self._lock:
            if not self._wanted and not self._registrations and self._sinks is None:
                raise SettingsError(
                    "nothing is registered: use `on`, `register` or `register_sink` before `run`"
                )

    async def __aenter__(self) -> Self:
        self._coroutines.use(asyncio.get_running_loop())
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(self, *exception: object) -> None:
        # On a thread: the last callbacks may be coroutines, which need this loop.
        await asyncio.to_thread(self.stop)

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
        subscription = replace(subscription, place=self._sought.pop(subscription.key, ""))
        registration = make_registration(subscription, consumers, servers, context, listener)
        check_new_group(registration.group, [one.group for one in self._registrations.values()])
        self._registrations[subscription.key] = registration
        if self.state is Lifecycle.PAUSED:
            registration.hold()
        return registration

    def _seek(self, key: tuple[str, tuple[str, ...]], place: str) -> None:
        """Let a registration begin at a place: the running one ends, and begins again there."""
        with self._lock:
            registration = self._registrations.get(key)
            if registration is not None and registration.is_this_thread:
                raise SettingsError(
                    f"seek: a callback of registration {key[0]!r} cannot move it; iterate over "
                    "`client.windows(…)` instead, or call it elsewhere"
                )
            self._sought[key] = place
            known = {*self._registrations, *self._wanted}
        if registration is None:
            if known and key not in known:
                others = "; ".join(f"{name!r} of {', '.join(sources)}" for name, sources in known)
                text = "seek: %r of %s begins at %s once it is read; this client has %s"
                log.warning(text, key[0], ", ".join(key[1]), place, others)
            return
        registration.stop()
        if registration.iterator is not None:
            return  # who iterates opens it again
        if not registration.join(STOP_S):
            raise ConsumerError(registration.status.scn, "seek: a callback has not returned")
        with self._lock:
            del self._registrations[key]
            again = self._add(registration.subscription, registration.consumers)
        again.start()

    def _is_sought(self, subscription: Subscription) -> bool:
        """Whether an iteration that has ended is to begin again at another place."""
        return subscription.key in self._sought and self.state is not Lifecycle.SHUT_DOWN

    def _open_windows(
        self, subscription: Subscription, listener: PartitionListener | None
    ) -> Registration:
        self.start()
        key = subscription.key
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
            self._registrations.pop(registration.subscription.key, None)

    def _take_error(self, registration: Registration, error: DatabusError) -> None:
        registration.error = error
        log.error("%s: stopped by an error: %s", registration.subscription.name, error)
        # The error is noted before the others are looked at: of two that fail at the same
        # moment, one sees that nothing goes on.
        if all(one.error is not None for one in self.registrations):
            self._handle(lifecycle.Suspend(error))

    async def _watch(self) -> None:
        """Sample the statistics, and detect callbacks that do not return."""
        interval_s = min(_WATCH_S, self.settings.callback_budget_s / 4)
        while True:
            await asyncio.sleep(interval_s)
            for registration in self.registrations:
                registration.stats.sample()
                error = registration.overdue() if self.state is Lifecycle.RUNNING else None
                if error is not None and registration.error is None:
                    self._take_error(registration, error)
