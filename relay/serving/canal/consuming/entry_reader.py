"""Reads the entries of one physical source that a consumer gets, from a place on. On the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Any, NamedTuple

from databus.conf.doors.canal_settings import CanalSettings
from databus.daemon.fair_queue import FairQueue
from databus.relay.monitoring.clients import Caller
from databus.relay.relay import Relay
from databus.relay.ring.event_selector import WINDOW_DONE, Position
from databus.relay.ring.selection import Selection
from databus.relay.serving.canal.consuming.batches import Place
from databus.relay.serving.canal.consuming.passing import Item, Passing
from databus.relay.serving.canal.entries import EntryWriter
from databus.relay.serving.canal.protocol.filters import TableFilter
from databus.relay.serving.reading.feed import Feed
from databus.relay.serving.reading.window_reader import stands_for_begin
from databus.schemas.avro_rows import captured_table
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.event.v2 import peek

READ_BYTES = 256 << 10  # of events; entries are a few times as large


@dataclass(frozen=True, slots=True)
class Stage:
    """What all consumers of a door read with."""

    relay: Relay
    queue: FairQueue
    settings: CanalSettings
    zone: tzinfo
    ending: set[asyncio.Task[None]] = field(default_factory=set)
    """Reads that were given up, and end."""

    def end_soon(self, ending: Coroutine[Any, Any, None]) -> None:
        """Let a read end beside what is done now."""
        task = asyncio.get_running_loop().create_task(ending)
        self.ending.add(task)
        task.add_done_callback(self.ending.discard)


class Read(NamedTuple):
    """Entries, and whether there was nothing to read, so that windows to come may be waited for."""

    items: list[Item]
    is_caught_up: bool


class EntryReader:
    """Reads one physical source for one consumer. One reader at a time."""

    def __init__(
        self,
        stage: Stage,
        caller: Caller,
        source: str,
        tables: TableFilter,
        checkpoint: Checkpoint | None,
        place: Place | None,
        *,
        from_latest: bool = False,
    ) -> None:
        """`checkpoint` is that of the place, with the mark of its log.

        Without a place it begins with the oldest change, or with `from_latest` with the next one.
        """
        self.source = source
        self._stage = stage
        self._tables = tables
        self._passing = None if place is None else Passing(source, tables, place)
        self.began = place
        """Where it began; None while nothing says so."""
        self._is_from_latest = from_latest and place is None
        self._selection = Selection(
            source,
            checkpoint or Checkpoint.flexible(),
            src_ids=src_ids_of(stage.relay, source, tables),
            from_latest=self._is_from_latest,
            wants_ddl=True,
        )
        self.feed = Feed(stage.relay, stage.queue, caller, self._selection, tables.white)
        relay = stage.relay
        names = relay.physical_source(source).settings.names
        self._writer = EntryWriter(
            relay.registry.text_of, relay.catalog.name_of, stage.zone, names=names
        )

    @property
    def place(self) -> Place | None:
        """How far it has come; None while nothing says where it begins."""
        return None if self._passing is None else self._passing.place

    def disconnect(self) -> None:
        """End a wait."""
        self.feed.disconnect()

    async def read(self, wait_s: float) -> Read:
        """Return the next entries, those that come within so many seconds.

        Raises any error of reading. Nothing is lost if it is cancelled.
        """
        if self.needs_place:
            wait_s = 0.0
        response = await self.feed.read(READ_BYTES, wait_s)
        # Nothing is awaited from here on.
        return Read(self.take(response.body, response.resume), response.is_caught_up)

    @property
    def needs_place(self) -> bool:
        """Whether the place of the newest window is needed before another one comes."""
        return self._is_from_latest and self._passing is None

    def take(self, body: bytes, resume: Position | None) -> list[Item]:
        """Return the entries of what was read next, up to the place `resume`."""
        began = time.perf_counter()
        if self._passing is None:
            place = _begin_of(body, resume)
            if place is not None and body and self._is_begin(body):
                # Nobody can read inside it: rows of that window are in no ring.
                place = place[0], WINDOW_DONE
            if place is None:
                return []
            self.began = Place(place)
            self._passing = Passing(self.source, self._tables, self.began)
        items = self._passing.take(self._writer.entries(body))
        if resume is not None:
            self._passing.reach(resume)
        self._stage.queue.spent(time.perf_counter() - began)
        return items

    def _is_begin(self, body: bytes) -> bool:
        """Return whether the first window that was read only says where capture began."""
        first = peek(body)
        history = self._stage.relay.physical_source(self.source).history
        return first.is_eop and stands_for_begin(history, first.scn)


def _begin_of(body: bytes, resume: Position | None) -> Position | None:
    """Return the place before the first events that were read."""
    if body:
        return peek(body).scn, 0
    if resume is None or resume[0] < 0:
        return None
    scn, offset = resume
    return (scn, WINDOW_DONE) if offset == WINDOW_DONE else (scn, 0)


def src_ids_of(relay: Relay, source: str, tables: TableFilter) -> frozenset[int] | None:
    """Return the ids of the sources whose tables may pass; None for all of them."""
    ids = relay.catalog.src_ids_of(source)
    wanted = {src_id for name, src_id in ids.items() if _may_pass(relay, name, tables)}
    is_all = len(wanted) == len(ids) and not relay.catalog.former_ids
    # Nothing can be read without any source; and then all entries are left out one by one.
    return None if is_all or not wanted else frozenset(wanted)


def _may_pass(relay: Relay, name: str, tables: TableFilter) -> bool:
    known = relay.registry.sources()
    versions = relay.registry.versions(name) if name in known else ()
    # A source of which no row was seen yet may have any table.
    found = captured_table(versions[-1].text) if versions else None
    return found is None or tables.passes(found)
