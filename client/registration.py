"""One running registration: its buffer, its puller, and the consumer of its windows.

The consumer is either a dispatcher that makes callbacks, or an iterator of windows.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import cast

from databus.client.checkpoints.store import CheckpointStore, hold_in
from databus.client.consumer import Consumer, OnFailure
from databus.client.dispatcher.callbacks import CheckpointRule, Dispatch
from databus.client.dispatcher.calls import Clock
from databus.client.dispatcher.data_window import DataWindow
from databus.client.dispatcher.dispatcher import Dispatcher
from databus.client.dispatcher.session import Session
from databus.client.dispatcher.window_iterator import WindowIterator
from databus.client.machines.position import Position, parse_start, position_of
from databus.client.machines.reachability import Silence
from databus.client.machines.server_set import Servers, ServerSetChangeMessage
from databus.client.machines.states import Connection
from databus.client.puller.buffer import Buffer
from databus.client.puller.buffer_items import BufferItem, ReadingFailed
from databus.client.puller.loop_thread import LoopThread
from databus.client.puller.puller import OnRegistered, Puller
from databus.client.puller.stats import RegistrationStats
from databus.client.subscription import Subscription
from databus.conf.settings import ClientSettings
from databus.schemas.errors import ConsumerError, DatabusError

OnError = Callable[["Registration", DatabusError], None]


@dataclass(frozen=True, slots=True)
class ClientContext:
    """Settings and services that all registrations of one client share."""

    settings: ClientSettings
    store: CheckpointStore
    loop: LoopThread
    rng: Random
    clock: Clock
    on_error: OnError
    is_impatient: bool = False
    on_registered: OnRegistered | None = None
    client_id: str = ""
    has_given_store: bool = False  # `store` was given by the application


@dataclass(frozen=True, slots=True)
class RegistrationStatus:
    """Status of one registration, for people and health checks."""

    name: str
    sources: tuple[str, ...]
    state: str
    server: str | None
    scn: int  # of the last window consumed, -1 = none
    buffered_bytes: int
    problem: str | None


class Registration:
    """One registration. Its client starts and stops it."""

    def __init__(
        self,
        subscription: Subscription,
        consumers: Sequence[Consumer],
        servers: Servers,
        context: ClientContext,
    ) -> None:
        """Lock and load the checkpoint; raise CheckpointError if it is in use or damaged.

        Without consumers, `iterator` yields the windows.
        """
        self.subscription = subscription
        self.stats = RegistrationStats(context.clock)
        self.error: DatabusError | None = None  # what stopped the client
        self.iterator: WindowIterator | None = None
        self.dispatcher: Dispatcher | None = None
        self._context, self.consumers = context, consumers
        self._cancel: Callable[[], None] | None = None
        self._is_reading = False
        self._failed: ReadingFailed | None = None
        self._let_go: Callable[[], None] = _nothing
        self._holding = threading.Lock()
        self._prepare(servers)

    def _prepare(self, servers: Servers) -> None:
        store, subscription = self._context.store, self.subscription
        # Before the load: another process may be writing the checkpoint.
        self._let_go = hold_in(store, subscription.name, subscription.sources)
        try:
            position = self._load_position()
        except BaseException:
            self.let_go()
            raise
        self._open(subscription, position, servers, store)

    def _open(
        self,
        subscription: Subscription,
        position: Position,
        servers: Servers,
        store: CheckpointStore,
        session: Session | None = None,
    ) -> None:
        """Make what reads from `position` on, and what consumes that; start nothing."""
        context, settings = self._context, self._context.settings
        self._buffer: Buffer[BufferItem] = Buffer(settings.buffer_bytes)
        puller = self._puller = self._make_puller(subscription, servers, position)
        # The dispatcher frees room on its own thread; the puller runs on the loop.
        self._buffer.on_room = lambda: context.loop.call(puller.wake)
        rule = CheckpointRule(settings.checkpoint_every_s, context.clock)
        if self.consumers:
            self.dispatcher = self._make_dispatcher(subscription, rule, position, store, session)
        else:
            self.iterator = WindowIterator(
                subscription,
                rule,
                store,
                self._buffer,
                position,
                self.let_go,
                self.stats,
                settings.back_off,
                session,
            )

    def start(self) -> None:
        """Start reading and making callbacks."""
        if self.dispatcher is not None:
            self.dispatcher.start()
        self._pull()

    def hold(self) -> None:
        """Make no callbacks until `release`."""
        if self.dispatcher is not None:
            self.dispatcher.hold()

    def release(self) -> None:
        """Make callbacks again."""
        self.error = None
        if self.dispatcher is not None:
            self.dispatcher.release()

    def retry(self) -> None:
        """Start reading again if it has stopped."""
        if not self._is_reading:
            # The error is still in the buffer, and must not suspend the resumed client.
            if self._failed is not None:
                self._failed.is_retried = True
            self._pull()

    def change_servers(self, message: ServerSetChangeMessage) -> None:
        """Pass a change of the server set to the puller."""
        self._context.loop.call(self._puller.change_servers, message)

    def overdue(self) -> ConsumerError | None:
        """Return the error to stop with when a callback does not return."""
        return None if self.dispatcher is None else self.dispatcher.dispatch.overdue()

    def stop(self) -> None:
        """Ask puller and dispatcher to end."""
        if self._cancel is not None:
            self._cancel()
        if self.dispatcher is not None:
            self.dispatcher.stop()
        if self.iterator is not None:
            self.iterator.stop()

    def join(self, timeout_s: float) -> bool:
        """Wait for the dispatcher to end; return False after the timeout."""
        if self.dispatcher is None:
            return True
        is_over = self.dispatcher.join(timeout_s)
        if not self.dispatcher.has_begun:
            self.let_go()  # the thread, which would do it at its end, never ran
        return is_over

    def commit(self) -> None:
        """Write the checkpoint of the newest window that was yielded; see `DataWindow.commit`."""
        if self.iterator is not None:
            self.iterator.commit()

    def windows(self) -> Iterator[DataWindow]:
        """Yield the windows of a registration without consumers; raise what ends reading."""
        assert self.iterator is not None
        yield from self.iterator.windows()

    def windows_async(self) -> AsyncGenerator[DataWindow, None]:
        """Yield as `windows` does, in an asyncio task."""
        assert self.iterator is not None
        return self.iterator.windows_async()

    def let_go(self) -> None:
        """Release the lock on the checkpoint, once. Thread-safe."""
        with self._holding:
            let_go, self._let_go = self._let_go, _nothing
        let_go()

    @property
    def is_this_thread(self) -> bool:
        """Whether the caller is one of its callbacks."""
        return self.dispatcher is not None and self.dispatcher.is_this_thread

    @property
    def relay(self) -> str | None:
        """The relay that last answered an event request."""
        return self._puller.relay

    @property
    def has_heard(self) -> bool:
        """Whether a server has ever answered an event request."""
        return self._puller.reachability.has_heard

    def silence(self, others: Silence | None) -> Silence | None:
        """Return the silence of its servers; `others` is the silence seen by other requests."""
        return self._puller.silence(others)

    @property
    def connection(self) -> Connection:
        """State of the connection machine."""
        return self._puller.state

    @property
    def problem(self) -> str:
        """The current problem, or ""."""
        error = self.error or self._puller.last_problem
        return self.unsaved if error is None else str(error)

    @property
    def last_error(self) -> DatabusError | None:
        """The newest error of reading, until a server answers again."""
        return self._puller.last_problem

    @property
    def unsaved(self) -> str:
        """Why the newest checkpoint is not written yet, or ""."""
        consuming = self.dispatcher or self.iterator
        return "" if consuming is None else consuming.keeper.problem

    @property
    def kept_scn(self) -> int | None:
        """The SCN after which a restart would continue; None in a bootstrap, or if unknown."""
        consuming = self.dispatcher or self.iterator
        kept = None if consuming is None else consuming.keeper.kept
        return None if kept is None else kept.restart_scn

    @property
    def group(self) -> str:
        """The group with which it shares the rows, "" without one."""
        return ""

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions of the group that it owns."""
        return frozenset()

    @property
    def partition_count(self) -> int:
        """The number of the group's partitions, 0 without a group."""
        return 0

    @property
    def blocked(self) -> str:
        """Why a group lets this process read nothing, or may soon; ""."""
        return ""

    @property
    def is_idle(self) -> bool:
        """Whether a group gives this process nothing to read."""
        return False

    @property
    def status(self) -> RegistrationStatus:
        """Current status."""
        problem = self._puller.last_problem
        consuming = self.dispatcher or self.iterator
        return RegistrationStatus(
            self.subscription.name,
            self.subscription.sources,
            self._puller.state.value,
            self._puller.server,
            -1 if consuming is None else consuming.scn,
            self._buffer.held_bytes,
            (self.unsaved or None) if problem is None else str(problem),
        )

    def _load_position(self) -> Position:
        name, sources = self.subscription.name, self.subscription.sources
        if self.subscription.place:
            return parse_start(self.subscription.place)
        checkpoint = self._context.store.load(name, sources)
        if checkpoint is None:
            return parse_start(self._context.settings.start)
        return position_of(checkpoint)

    def _make_puller(
        self, subscription: Subscription, servers: Servers, position: Position
    ) -> Puller:
        context = self._context
        return Puller(
            subscription,
            servers,
            position,
            context.settings,
            self._buffer,
            context.rng,
            self._fail,
            context.is_impatient,
            context.on_registered,
            stats=self.stats,
            clock=context.clock,
            client_id=context.client_id,
        )

    def _make_dispatcher(
        self,
        subscription: Subscription,
        rule: CheckpointRule,
        position: Position,
        store: CheckpointStore,
        session: Session | None,
    ) -> Dispatcher:
        context = self._context
        settings = context.settings
        dispatch = Dispatch(
            self.consumers,
            settings.callback_budget_s,
            settings.callback_retries,
            context.clock,
            cast("OnFailure", subscription.on_failure),
        )
        return Dispatcher(
            subscription,
            dispatch,
            rule,
            store,
            self._buffer,
            settings,
            position,
            context.rng,
            lambda error: context.on_error(self, error),
            self.let_go,
            self.stats,
            session,
        )

    def _pull(self) -> None:
        self._is_reading = True  # set first: the task may fail before `spawn` returns
        self._cancel = self._context.loop.spawn(self._puller.run, self._puller_died)

    def _puller_died(self, error: BaseException) -> None:
        """Report a defect: reading must not end silently."""
        wrapped = DatabusError(f"{self.subscription.name}: the puller ended: {error!r}")
        wrapped.__cause__ = error
        self._fail(wrapped)

    def _fail(self, error: DatabusError) -> None:
        self._is_reading = False
        # Through the buffer: the windows read before are consumed first, and consumers get
        # the error on the thread of their callbacks.
        self._failed = ReadingFailed(error)
        self._buffer.put([self._failed])


def _nothing() -> None:
    pass
