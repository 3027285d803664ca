"""One consumer: a client id of a destination, with its filter, its cursor and its batches.

It is not bound to a connection: it stays subscribed until it unsubscribes, and what it was sent
stays outstanding until it is acknowledged or rolled back. On the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter

from databus.conf.doors.canal_settings import CanalDestinationSettings
from databus.relay.monitoring.clients import Caller
from databus.relay.serving.canal.consuming.batches import Batches, Place
from databus.relay.serving.canal.consuming.cursors import Cursor, place_of
from databus.relay.serving.canal.consuming.entry_reader import EntryReader, Stage, src_ids_of
from databus.relay.serving.canal.consuming.merged_reader import EntrySource, open_entries
from databus.relay.serving.canal.consuming.passing import Item
from databus.relay.serving.canal.consuming.proofs import is_proved, marked
from databus.relay.serving.canal.entries import Kind
from databus.relay.serving.canal.protocol.errors import BAD_REQUEST, CanalError
from databus.relay.serving.canal.protocol.filters import TableFilter
from databus.relay.serving.canal.protocol.packets import NO_BATCH, messages
from databus.relay.serving.canal.protocol.session import Wanted
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import DatabusError, OtherLogError, ScnNotFoundError

log = logging.getLogger(__name__)

MEMORY_UNIT_BYTES = 1024  # Canal's `memunit`
PASSED_EVERY_S = 5.0  # how often a cursor is kept that only what was left out has moved

Keep = Callable[[Cursor], None]
_DATA_OF, _SIZE_OF = attrgetter("data"), attrgetter("size_bytes")


@dataclass(slots=True)
class Counts:
    """What a consumer was sent since the relay started, and when last, in Unix seconds."""

    batches: int = 0
    entries: int = 0
    size_bytes: int = 0
    rollbacks: int = 0
    sent_at: float | None = None
    acked_at: float | None = None
    problem: str = ""


class Consumer:
    """A subscribed client of a destination."""

    def __init__(
        self,
        stage: Stage,
        destination: CanalDestinationSettings,
        client_id: int,
        cursor: Cursor,
        keep: Keep,
    ) -> None:
        """`keep` is called with each cursor that is to be kept; raises CanalError."""
        self.client_id = client_id
        self.counts = Counts()
        self.address = ""
        """Where its last request came from."""
        self.filter_text = cursor.filter_text
        self._stage, self._destination, self._keep = stage, destination, keep
        self._tables = tables_of(destination, cursor.filter_text)
        self._checkpoints = self._proved(cursor)
        names = [one for one in destination.physical_sources if one in self._checkpoints]
        self._anew = cursor.checkpoints.keys() - self._checkpoints.keys()
        self.batches = Batches({name: place_of(self._checkpoints[name]) for name in names})
        self._entries: EntrySource | None = None
        self._readers: Mapping[str, EntryReader] = {}
        self._items: deque[Item] = deque()
        self._memory_bytes = self._data_bytes = 0  # of these items
        self._generation = 0
        self._turn = asyncio.Lock()
        self._passed_s = self._looked_s = float("-inf")

    @property
    def caller(self) -> Caller:
        """It, as the relay's list of clients has it."""
        name = f"canal:{self._destination.name}:{self.client_id}"
        return Caller(name, self.address, "canal client")

    @property
    def cursor(self) -> Cursor:
        """What is kept of it."""
        return Cursor(
            self._destination.name, self.client_id, self.filter_text, dict(self._checkpoints)
        )

    def is_ahead_of(self, source: str) -> bool:
        """Return whether its place was behind the newest window when it was read last."""
        return source in self._readers and self._readers[source].feed.is_ahead

    @property
    def waiting(self) -> int:
        """Number of entries that were read and not sent yet."""
        return len(self._items)

    @property
    def is_merged(self) -> bool:
        """Whether it gets the changes of several physical sources."""
        return len(self._destination.physical_sources) > 1

    def subscribe(self, filter_text: str) -> None:
        """Take over a filter, unless it is empty; raises CanalError if it cannot be used."""
        if not filter_text or filter_text == self.filter_text:
            return
        self._tables = tables_of(self._destination, filter_text)
        self.filter_text = filter_text
        self.batches.restart_windows()
        self._restart()

    async def get(self, wanted: Wanted) -> bytes:
        """Return the next batch as a frame; raises CanalError.

        It is empty if there is nothing in the time to wait, or if the consumer was rolled back
        meanwhile, from another connection.
        """
        most_s = self._stage.settings.max_wait_s
        wait_s = most_s if wanted.wait_s is None else min(wanted.wait_s, most_s)
        async with self._turn:
            self.batches.check_room()
            generation = self._generation
            await self._fill(wanted.size, wait_s)
            if generation != self._generation:
                return messages(NO_BATCH, ())
            return self._next_batch(wanted.size)

    def acknowledge(self, batch_id: int) -> None:
        """Acknowledge the oldest batch; raises CanalError."""
        self.batches.acknowledge(batch_id, self.client_id)
        self.counts.acked_at = self._now()
        self._keep_places()

    def roll_back(self, batch_id: int) -> None:
        """Forget a batch or all of them, and read again what they had; raises CanalError."""
        self.batches.roll_back(batch_id, self.client_id)
        self.counts.rollbacks += 1
        self._restart()

    def end(self) -> None:
        """End a wait for changes."""
        self._restart()

    def _restart(self) -> None:
        """Read again from where the last batch that is left ends."""
        self._generation += 1
        self._drop()

    def _drop(self) -> None:
        """Forget what was read and not sent: it is read again, of all sources."""
        if self._entries is not None:
            self._entries.close()
            self._entries = None
        self._items.clear()
        self._memory_bytes = self._data_bytes = 0

    async def _fill(self, size: int, wait_s: float) -> None:
        """Read until a batch is full, there is nothing more, or the time is over."""
        loop = asyncio.get_running_loop()
        end, generation = loop.time() + wait_s, self._generation
        while not self._is_full(size):
            entries = self._entries = self._entries or self._open()
            try:
                read = await entries.read(max(0.0, end - loop.time()))
            except DatabusError as error:
                if generation != self._generation:
                    return
                self.counts.problem = str(error)
                self._drop()
                raise self._refusal(error) from error
            except asyncio.CancelledError:
                if generation == self._generation:
                    self._drop()  # what was read just now may be lost with the request
                raise
            if generation != self._generation:
                return
            self.counts.problem = ""
            self._take(read.items)
            self._begin(entries)
            if read.is_caught_up:
                return

    def _open(self) -> EntrySource:
        self._readers = readers = {
            source: EntryReader(
                self._stage,
                self.caller,
                source,
                self._tables,
                self._checkpoint(source),
                self.batches.sent.get(source),
                from_latest=self._destination.start == "latest" and source not in self._anew,
            )
            for source in self._destination.physical_sources
        }
        return open_entries(readers, self._stage)

    def _checkpoint(self, source: str) -> Checkpoint | None:
        place, kept = self.batches.sent.get(source), self._checkpoints.get(source)
        if place is None:
            return None
        if kept is not None and place == place_of(kept):
            return kept
        return self._marked(source, place)

    def _marked(self, source: str, place: Place, *, looks: bool = False) -> Checkpoint:
        relay = self._stage.relay
        src_ids = src_ids_of(relay, source, self._tables) if looks else None
        found, before = relay.physical_source(source), self._checkpoints.get(source)
        return marked(found, place, before, src_ids, looks=looks)

    def _proved(self, cursor: Cursor) -> dict[str, Checkpoint]:
        """Return what is kept in a cursor, without what may be of another log.

        There the client begins with the oldest change that is held: it was sent no row before.
        """
        found = {}
        for source, kept in cursor.checkpoints.items():
            if source in self._destination.physical_sources and not is_proved(
                self._stage.relay.physical_source(source), kept
            ):
                log.warning(
                    "canal: the cursor of %s, client %d, in %s has no row by which its log is "
                    "recognised: it begins with the oldest change that is held",
                    cursor.destination,
                    cursor.client_id,
                    source,
                )
            else:
                found[source] = kept
        return found

    def _take(self, items: list[Item]) -> None:
        self._items.extend(items)
        self._memory_bytes += sum(map(_SIZE_OF, items))
        self._data_bytes += sum(map(len, map(_DATA_OF, items)))

    def _begin(self, entries: EntrySource) -> None:
        """Keep where a source begins as soon as that is known: a rollback goes back there."""
        new = {
            source: place
            for source, place in entries.begins().items()
            if source not in self.batches.sent
        }
        for source, place in new.items():
            self.batches.begin(source, place)
        if new:
            self._keep_places()

    def _is_full(self, size: int) -> bool:
        if self._data_bytes >= self._stage.settings.max_batch_bytes:
            return True
        if self._stage.settings.batch_mode == "itemsize":
            return len(self._items) >= size
        return self._memory_bytes >= size * MEMORY_UNIT_BYTES

    def _next_batch(self, size: int) -> bytes:
        data_bytes = self._data_bytes
        taken = self._cut(size)
        places = {source: item.place for source, item in {one.source: one for one in taken}.items()}
        if not self._items and self._entries is not None:
            places |= self._entries.places()
        if not taken:
            self._pass_by(places)
            return messages(NO_BATCH, ())
        batch_id = self.batches.send(places)
        counts = self.counts
        counts.batches += 1
        counts.entries += len(taken)
        counts.size_bytes += data_bytes - self._data_bytes
        counts.sent_at = self._now()
        return messages(batch_id, list(map(_DATA_OF, taken)))

    def _cut(self, size: int) -> list[Item]:
        """Take the items of a batch: at least one, if there is any."""
        settings, items = self._stage.settings, self._items
        by_items, isolates = settings.batch_mode == "itemsize", settings.ddl_isolation
        most_data_bytes, most_memory_bytes = settings.max_batch_bytes, size * MEMORY_UNIT_BYTES
        taken: list[Item] = []
        memory_bytes = data_bytes = 0
        while items:
            data, size_bytes, kind, *_ = items[0]
            is_alone = isolates and kind is Kind.DDL
            if taken and (is_alone or data_bytes + len(data) > most_data_bytes):
                break
            taken.append(items.popleft())
            memory_bytes += size_bytes
            data_bytes += len(data)
            is_full = len(taken) >= size if by_items else memory_bytes >= most_memory_bytes
            if is_alone or is_full:
                break
        self._memory_bytes -= memory_bytes
        self._data_bytes -= data_bytes
        return taken

    def _pass_by(self, places: Mapping[str, Place]) -> None:
        now_s = self._stage.relay.clock.monotonic_s()
        is_moved = dict(places) != {name: self.batches.sent.get(name) for name in places}
        if is_moved and self.batches.pass_by(places) and now_s - self._passed_s >= PASSED_EVERY_S:
            self._passed_s = now_s
            self._keep_places()

    def _keep_places(self) -> None:
        now_s = self._stage.relay.clock.monotonic_s()
        looks = now_s - self._looked_s >= PASSED_EVERY_S
        self._looked_s = now_s if looks else self._looked_s
        found = {
            source: self._marked(source, place, looks=looks)
            for source, place in self.batches.acked.items()
        }
        if any(self._checkpoints.get(source) != one for source, one in found.items()):
            self._checkpoints |= found
            self._keep(self.cursor)

    def _refusal(self, error: DatabusError) -> CanalError:
        who = f"destination:{self._destination.name} clientId:{self.client_id}"
        if isinstance(error, CanalError):
            return error
        if isinstance(error, ScnNotFoundError):
            return CanalError(
                BAD_REQUEST,
                f"{who}: the changes after its cursor are no longer held: {error}. Unsubscribe, "
                "which forgets the cursor, read the tables anew, and subscribe again",
            )
        if isinstance(error, OtherLogError):
            return CanalError(
                BAD_REQUEST,
                f"{who}: {error}. To begin anew, unsubscribe, which forgets the cursor",
            )
        return CanalError(BAD_REQUEST, f"{who}: {error}")

    def _now(self) -> float:
        return self._stage.relay.clock.wall_ns() / 1e9


def tables_of(destination: CanalDestinationSettings, filter_text: str) -> TableFilter:
    """Return the filter of a client; raises CanalError."""
    return TableFilter(filter_text or destination.filter, destination.black_filter)
