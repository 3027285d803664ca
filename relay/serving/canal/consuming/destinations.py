"""The destinations of a door, and who has subscribed to them. On the loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress

from databus.conf.doors.canal_settings import CanalDestinationSettings
from databus.relay.serving.canal.consuming.consumer import Consumer, tables_of
from databus.relay.serving.canal.consuming.cursor_store import CursorKeeper, Key
from databus.relay.serving.canal.consuming.cursors import Cursor
from databus.relay.serving.canal.consuming.entry_reader import Stage
from databus.relay.serving.canal.protocol.errors import BAD_REQUEST, CanalError, not_subscribed
from databus.relay.serving.canal.protocol.session import Action, Wanted
from databus.schemas.errors import DatabusError, SettingsError

log = logging.getLogger(__name__)

KEPT_S = 10.0  # for which a subscription waits until it is kept
MOST_CONSUMERS = 1000  # of a destination


class Destination:
    """A destination of this relay; one that `is_active` is served here."""

    def __init__(
        self, stage: Stage, settings: CanalDestinationSettings, keeper: CursorKeeper
    ) -> None:
        """Raises SettingsError if its filters cannot be used."""
        self.settings = settings
        self.is_active = False
        self.elsewhere = ""
        """Address of the relay that serves it, if that is another one."""
        self.consumers: dict[int, Consumer] = {}
        self._stage, self._keeper = stage, keeper
        self._opening = asyncio.Lock()
        self._is_listed = False
        try:
            tables_of(settings, ".*")  # clients will send some
            tables_of(settings, "")
        except CanalError as error:
            raise SettingsError(f"canal destination {settings.name}: {error}") from error

    @property
    def name(self) -> str:
        """Its name."""
        return self.settings.name

    def activate(self) -> None:
        """Serve it here from now on."""
        self.is_active, self.elsewhere = True, ""

    def deactivate(self, elsewhere: str = "") -> None:
        """Serve it no more: another relay does. Its cursors are read again when it comes back."""
        self.is_active, self.elsewhere, self._is_listed = False, elsewhere, False
        self._keeper.drop(self.name)
        self._keeper.store.forget(self.name)
        self.end()

    def end(self) -> None:
        """Forget all consumers here; their cursors are kept."""
        consumers, self.consumers = self.consumers, {}
        for one in consumers.values():
            one.end()

    async def serve(self, wanted: Wanted, address: str) -> bytes:
        """Carry out a request; return the answer of a GET. Raises CanalError."""
        self._check_active()
        consumer = await self._consumer(wanted.client_id)
        if wanted.action is Action.SUBSCRIBE:
            await self._subscribe(wanted, consumer, address)
        elif consumer is None:
            # Canal's clients roll back before they subscribe.
            if wanted.action is not Action.ROLL_BACK:
                raise not_subscribed(self.name, wanted.client_id)
        elif wanted.action is Action.UNSUBSCRIBE:
            del self.consumers[wanted.client_id]
            consumer.end()
            async with self._opening:  # nobody opens it again by the cursor that is going
                await self._kept(wanted.client_id, None)
        elif wanted.action is Action.ACKNOWLEDGE:
            consumer.acknowledge(wanted.batch_id)
        elif wanted.action is Action.ROLL_BACK:
            consumer.address = address
            consumer.roll_back(wanted.batch_id)
        else:
            consumer.address = address
            return await consumer.get(wanted)
        return b""

    async def open_kept(self) -> None:
        """Open the clients that have a cursor, also those that are away; once while it is active.

        Raises DatabusError or OSError if they are not known now.
        """
        if self._is_listed or not self.is_active:
            return
        loop = asyncio.get_running_loop()
        ids = await loop.run_in_executor(None, self._keeper.store.client_ids, self.name)
        for client_id in ids[:MOST_CONSUMERS]:
            try:
                await self._consumer(client_id)
            except CanalError as error:  # the client is told so, too
                log.warning("canal: %s", error)
        self._is_listed = self.is_active

    def _check_active(self) -> None:
        if not self.is_active:
            other = f"; it is served at {self.elsewhere}" if self.elsewhere else ""
            raise CanalError(
                BAD_REQUEST, f"destination:{self.name} should start first, here it is not{other}"
            )

    async def _subscribe(self, wanted: Wanted, consumer: Consumer | None, address: str) -> None:
        if consumer is None:
            if len(self.consumers) >= MOST_CONSUMERS:
                raise CanalError(
                    BAD_REQUEST,
                    f"destination:{self.name} has {MOST_CONSUMERS} clients: unsubscribe those that "
                    "are not needed any more",
                )
            cursor = Cursor(self.name, wanted.client_id, wanted.filter_text, {})
            consumer = self._open(wanted.client_id, cursor)
        else:
            consumer.subscribe(wanted.filter_text)
        consumer.address = address
        await self._kept(wanted.client_id, consumer.cursor)

    async def _consumer(self, client_id: int) -> Consumer | None:
        """Return a subscribed client: known here, or by its cursor."""
        found = self.consumers.get(client_id)
        if found is not None:
            return found
        async with self._opening:  # two requests of one client must not open it twice
            found = self.consumers.get(client_id)
            if found is not None:
                return found
            loop = asyncio.get_running_loop()
            try:
                key = self.name, client_id
                cursor = await loop.run_in_executor(None, self._keeper.store.read, key)
            except CanalError:
                raise
            except DatabusError as error:
                raise CanalError(
                    BAD_REQUEST, f"destination:{self.name} clientId:{client_id}: {error}"
                ) from error
            self._check_active()  # it may have gone elsewhere meanwhile
            return None if cursor is None else self._open(client_id, cursor)

    def _open(self, client_id: int, cursor: Cursor) -> Consumer:
        def keep(kept: Cursor) -> None:
            # What an acknowledgement says is kept soon; nobody waits for it.
            if self.consumers.get(client_id) is consumer:
                self._keeper.keep((self.name, client_id), kept)

        consumer = Consumer(self._stage, self.settings, client_id, cursor, keep)
        self.consumers[client_id] = consumer
        return consumer

    async def _kept(self, client_id: int, cursor: Cursor | None) -> None:
        """Wait until a cursor is kept, or removed; raises CanalError."""
        done = asyncio.wrap_future(self._keeper.keep((self.name, client_id), cursor))
        try:
            await asyncio.wait_for(done, KEPT_S)
        except TimeoutError:
            problem = self._keeper.problem or "it takes too long"
            raise CanalError(
                BAD_REQUEST,
                f"destination:{self.name} clientId:{client_id}: the subscription could not be "
                f"kept: {problem}; subscribe again",
            ) from None
        except asyncio.CancelledError:
            if done.cancelled():
                raise CanalError(
                    BAD_REQUEST, f"destination:{self.name} is served by another relay now"
                ) from None
            raise
        except DatabusError as error:
            raise CanalError(BAD_REQUEST, str(error)) from error


class Destinations:
    """All destinations of a door, by name."""

    def __init__(self, found: Iterable[Destination]) -> None:
        self.by_name: Mapping[str, Destination] = {one.name: one for one in found}

    async def serve(self, wanted: Wanted, address: str) -> bytes:
        """Carry out a request; return the answer of a GET. Raises CanalError."""
        found = self.by_name.get(wanted.destination)
        if found is None:
            known = ", ".join(self.by_name)
            raise CanalError(
                BAD_REQUEST,
                f"destination:{wanted.destination} should start first: there is none of that "
                f"name; this relay has {known}",
            )
        return await found.serve(wanted, address)

    def end(self) -> None:
        """Forget all consumers here; their cursors are kept."""
        for one in self.by_name.values():
            one.end()

    def drop(self, key: Key) -> None:
        """Forget a client here whose cursor another relay has written."""
        destination, client_id = key
        with suppress(KeyError):
            self.by_name[destination].consumers.pop(client_id).end()
