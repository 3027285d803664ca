"""`DatabusClient`, the entry point for applications.

    client = DatabusClient("http://127.0.0.1:11115", checkpoint_dir="state")

    @client.on("shop.orders")
    def print_order(event):
        print(event.op, event.row)

    client.run()

or, with a consumer object, `client.register(MyConsumer(), ["shop.orders"])`; or, in a
loop, `for window in client.windows("shop.orders")`: see `batches` and `windows_async`, too.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Unpack

from databus.client.consumer import Consumer, OnFailure
from databus.client.dispatcher.data_window import DataWindow
from databus.client.dispatcher.partition_listener import PartitionListener
from databus.client.machines.states import Lifecycle
from databus.client.registering import (
    Function,
    FunctionConsumer,
    check_same,
    checked_consumers,
    checked_function,
    in_use,
    make_subscription,
)
from databus.client.running import RunningClient
from databus.client.subscription import Subscription
from databus.conf.model import place_text
from databus.schemas.errors import SettingsError
from databus.schemas.filters import EventFilter

if TYPE_CHECKING:
    from databus.client.sinks.contract import Sink
    from databus.client.sinks.options import SinkOptions
    from databus.client.sinks.running.feed import Feed


class DatabusClient(RunningClient):
    """Reads changes from relays and delivers them at least once and in order."""

    def register(
        self,
        consumer: Consumer | Sequence[Consumer],
        sources: Sequence[str],
        *,
        filters: Mapping[str, EventFilter | str] | None = None,
        reader_schemas: Mapping[str, str] | None = None,
        name: str = "default",
        batch_rows: int = 0,
        on_failure: OnFailure = "stop",
    ) -> None:
        """Deliver every change of the sources to a consumer, or to each of several.

        `name` and the exact list of sources identify the checkpoint. Registering the same
        again adds consumers. `filters` and `reader_schemas` (Avro schema texts) are by
        source; a filter is one of `databus.schemas.filters`, which the server applies, or an
        SQL condition over the row's columns, which the client applies. With `batch_rows` the
        windows that are waiting are joined into batches, of at most so many rows unless one
        window has more; the callbacks of a window are made once per batch. Callbacks may be
        coroutine functions. `on_failure` says what becomes of an
        event that fails after `callback_retries`; it can be found only if it is the argument
        of the callback that fails. Raises SettingsError, and CheckpointError if the client is
        running.
        """
        keep = self._coroutines.plain_function(on_failure) if callable(on_failure) else on_failure
        subscription = make_subscription(
            sources, filters, reader_schemas, name, batch_rows, on_failure=keep
        )
        consumers = [self._coroutines.plain(one) for one in checked_consumers(consumer)]
        key = subscription.key
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
        filters: Mapping[str, EventFilter | str] | None = None,
        reader_schemas: Mapping[str, str] | None = None,
        name: str = "default",
        batch_rows: int = 0,
        on_failure: OnFailure = "stop",
    ) -> Callable[[Function], Function]:
        """Return a decorator: the function is called with each event of the sources.

        With `batch_rows` it is called with the events of each run, a tuple: see `register`.
        It may be a coroutine function.
        """

        def decorate(function: Function) -> Function:
            consumer = FunctionConsumer(checked_function(function), takes_runs=batch_rows > 0)
            self.register(
                consumer,
                sources,
                filters=filters,
                reader_schemas=reader_schemas,
                name=name,
                batch_rows=batch_rows,
                on_failure=on_failure,
            )
            return function

        return decorate

    def windows(
        self,
        *sources: str,
        filters: Mapping[str, EventFilter | str] | None = None,
        reader_schemas: Mapping[str, str] | None = None,
        name: str = "default",
        auto_commit: bool = True,
        partition_listener: PartitionListener | None = None,
    ) -> Iterator[DataWindow]:
        """Iterate over windows; requesting the next one advances the checkpoint.

        With `auto_commit=False` only `commit`, of the client or of a window, does. Starts the
        client if necessary. The iteration ends when the client is stopped, and raises the error
        that ends reading. `partition_listener` is for a group.
        """
        subscription = make_subscription(
            sources, filters, reader_schemas, name, auto_commit=auto_commit
        )
        return self._iterate(subscription, partition_listener)

    def batches(
        self,
        *sources: str,
        rows: int = 10_000,
        filters: Mapping[str, EventFilter | str] | None = None,
        reader_schemas: Mapping[str, str] | None = None,
        name: str = "default",
        auto_commit: bool = True,
        partition_listener: PartitionListener | None = None,
    ) -> Iterator[DataWindow]:
        """Iterate as `windows` does, over batches of whole windows.

        A batch has the windows that wait, at most `rows` rows unless one window has more.
        """
        if rows < 1:
            raise SettingsError(f"rows = {rows}: give a number of rows")
        subscription = make_subscription(
            sources, filters, reader_schemas, name, rows, auto_commit=auto_commit
        )
        return self._iterate(subscription, partition_listener)

    async def windows_async(
        self,
        *sources: str,
        filters: Mapping[str, EventFilter | str] | None = None,
        reader_schemas: Mapping[str, str] | None = None,
        name: str = "default",
        auto_commit: bool = True,
        partition_listener: PartitionListener | None = None,
    ) -> AsyncGenerator[DataWindow, None]:
        """Iterate as `windows` does, in an asyncio task; the listener may have coroutines."""
        subscription = make_subscription(
            sources, filters, reader_schemas, name, auto_commit=auto_commit
        )
        while True:
            registration = self._open_windows(subscription, partition_listener)
            windows = registration.windows_async()
            try:
                async for window in windows:
                    yield window
            finally:
                await windows.aclose()
                self._close_windows(registration)
            if not self._is_sought(subscription):
                return

    def register_sink(
        self,
        sink: Callable[[], Sink] | str,
        *sources: str,
        name: str = "sink",
        **options: Unpack[SinkOptions],
    ) -> Feed:
        """Write every change of the sources to a sink; return its handle.

        `sink` makes a sink, one for each lane: a class or a function; or it is the kind of one,
        such as `files`. The keywords are the settings of `[[sinks]]`. `name` and the sources
        identify the position, which is in the client's store. Errors of the sink are in the
        handle's `status`, and do not stop the client. Raises SettingsError.
        """
        if self.settings.group:
            raise SettingsError("register_sink: a sink reads all rows, and not those of a group")
        from databus.client.sinks.running.registered import RegisteredSinks

        with self._lock:
            if self._sinks is None:
                self._sinks = RegisteredSinks(self, self._context.store)
        is_running = self.state in (Lifecycle.RUNNING, Lifecycle.PAUSED)
        return self._sinks.add(sink, sources, name, options, is_running=is_running)

    def commit(self) -> None:
        """Write the checkpoint of every iteration: all windows that it has yielded are consumed.

        For iterations with `auto_commit=False`; `DataWindow.commit` is for one window and all
        before it. A rollback of the client's process delivers what was not committed again.
        Raises CheckpointError.
        """
        for registration in self.registrations:
            registration.commit()

    def seek(self, place: str | int | datetime, *sources: str, name: str = "default") -> None:
        """Continue at another place, whatever the checkpoint says; a place is as in `start`.

        `name` and the sources are those of a registration or iteration. One that is not running
        begins there. A running iteration continues there with its next window; callbacks are
        ended first (`on_stop_consumption`) and then begin there. Raises SettingsError in a group,
        whose partitions have places of their own, and in a callback of the same registration.
        """
        if self.settings.group:
            raise SettingsError(
                "seek: the partitions of a group have places of their own: stop the group, and "
                "use `databus group` or another `group` with another `start`"
            )
        subscription = make_subscription(sources, name=name)
        self._seek(subscription.key, place_text(place))

    def _iterate(
        self, subscription: Subscription, listener: PartitionListener | None
    ) -> Iterator[DataWindow]:
        while True:
            registration = self._open_windows(subscription, listener)
            try:
                yield from registration.windows()
            finally:
                self._close_windows(registration)
            if not self._is_sought(subscription):
                return
