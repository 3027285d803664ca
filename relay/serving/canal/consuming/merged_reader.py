"""The entries of all physical sources of a destination, as a consumer gets them. On the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from databus.relay.serving.canal.consuming.batches import Place
from databus.relay.serving.canal.consuming.entry_reader import READ_BYTES, EntryReader, Read, Stage
from databus.relay.serving.merging import MergedFeed, Run


class EntrySource(Protocol):
    """Entries, in the order in which they are to be sent."""

    async def read(self, wait_s: float) -> Read:
        """Return the next ones, or those that come within so many seconds; may raise any error."""
        ...

    def begins(self) -> Mapping[str, Place]:
        """Return where each physical source began, as far as that is known."""
        ...

    def places(self) -> Mapping[str, Place]:
        """Return how far each physical source has come, with all entries that were returned."""
        ...

    def close(self) -> None:
        """End a wait; nothing is read any more."""
        ...


class OneSource:
    """The entries of the only physical source."""

    def __init__(self, reader: EntryReader) -> None:
        self._reader = reader

    async def read(self, wait_s: float) -> Read:
        """Return the next ones; may raise any error."""
        return await self._reader.read(wait_s)

    def begins(self) -> Mapping[str, Place]:
        """Return where it began."""
        began = self._reader.began
        return {} if began is None else {self._reader.source: began}

    def places(self) -> Mapping[str, Place]:
        """Return how far it has come."""
        place = self._reader.place
        return {} if place is None else {self._reader.source: place}

    def close(self) -> None:
        """End a wait."""
        self._reader.disconnect()


class SeveralSources:
    """The entries of several physical sources, transaction by transaction in the order of commits.

    The order of each source never changes, and no transaction is cut by one of another source.
    """

    def __init__(self, readers: Mapping[str, EntryReader], stage: Stage) -> None:
        self._readers, self._stage = readers, stage
        feeds = {source: one.feed for source, one in readers.items()}
        self._feed = MergedFeed(feeds, stage.settings.merge_wait_ms / 1000)
        self._reading: asyncio.Task[list[Run]] | None = None
        self._is_closed = False

    async def read(self, wait_s: float) -> Read:
        """Return the next ones; may raise any error."""
        for reader in self._readers.values():
            if reader.needs_place:
                await reader.read(0.0)
        self._reading = asyncio.ensure_future(self._feed.read(READ_BYTES, wait_s))
        try:
            runs = await self._reading
        except asyncio.CancelledError:
            if self._is_closed:
                return Read([], is_caught_up=True)
            raise
        # Nothing is awaited from here on.
        items = [
            item for run in runs for item in self._readers[run.source].take(run.body, run.place)
        ]
        return Read(items, is_caught_up=not runs)

    def begins(self) -> Mapping[str, Place]:
        """Return where each began, as far as that is known."""
        found = {source: one.began for source, one in self._readers.items()}
        return {source: place for source, place in found.items() if place is not None}

    def places(self) -> Mapping[str, Place]:
        """Return how far each has come."""
        found = {source: one.place for source, one in self._readers.items()}
        return {source: place for source, place in found.items() if place is not None}

    def close(self) -> None:
        """End all reads."""
        self._is_closed = True
        if self._reading is not None:
            self._reading.cancel()
        self._stage.end_soon(self._feed.close())


def open_entries(readers: Mapping[str, EntryReader], stage: Stage) -> EntrySource:
    """Return the entries of some physical sources."""
    if len(readers) > 1:
        return SeveralSources(readers, stage)
    (reader,) = readers.values()
    return OneSource(reader)
