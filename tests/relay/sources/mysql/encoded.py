"""What a source captures, read back from the very bytes that go into the ring.

The compiled decoder writes them where it was built; what it leaves to Python, and
all where it was not, is encoded as the relay does it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from databus.conf.settings import PhysicalSourceSettings
from databus.registry.registry import SchemaRegistry
from databus.registry.store import MemoryStore
from databus.relay.capture.window_encoder import WindowEncoder
from databus.relay.sources.mysql.source import MysqlSource
from databus.relay.sources.source import Captured
from databus.schemas.avro_rows import row_codec
from databus.schemas.event.event import Event
from databus.schemas.event.metadata import Notes, decode_metadata
from databus.schemas.event.v2 import decode
from databus.schemas.windows import EmptyWindow, WindowBatch
from tests.relay.sources.mysql.reading import IDLE_READS, Seen


class EncodedSource:
    """A source that writes windows, and what is read back of them."""

    def __init__(self, settings: PhysicalSourceSettings) -> None:
        self.source = MysqlSource(settings)
        ids = {name: number for number, name in enumerate(settings.source_names, 1)}
        self._registry = SchemaRegistry(MemoryStore())
        for name, number in ids.items():
            self._registry.add_source(name, number)
        self._encoder = WindowEncoder(self._registry, ids)

    def open(self) -> None:
        """Open the source, with an encoder for its windows."""
        self.source.write_with(self._encoder)
        self.source.open(None)
        for table in self.source.tables():
            self._encoder.publish_first([table])

    def read_seen(self, count: int) -> list[Seen]:
        """Read until there are `count` row changes; return what they say."""
        found: list[Seen] = []
        idle = 0
        while idle < IDLE_READS:
            if len(found) >= count:
                return found
            read = self.source.read()
            for captured in read:
                found += self._seen(captured)
            idle += not read
        raise AssertionError(f"still not enough: {len(found)} changes, {found[-3:]}")

    def _seen(self, captured: Captured) -> Iterator[Seen]:
        if isinstance(captured, EmptyWindow):
            return
        assert isinstance(captured, WindowBatch), "a window of the test is too large"
        data, at = captured.data, 0
        while at < len(data):
            event, at = decode(data, at)
            if not event.is_control:
                yield self._seen_in(event)

    def _seen_in(self, event: Event) -> Seen:
        assert event.payload is not None
        assert event.metadata is not None
        metadata = decode_metadata(event.metadata.data, event.metadata.digest)
        codec = row_codec(self._registry.by_id(event.payload.digest).text)
        notes = metadata.notes or Notes()
        row = codec.decode(event.payload.data, notes.absent)
        before = metadata.before
        return Seen(
            metadata.op,
            row,
            None if before is None else codec.decode(before, notes.before_absent),
            notes,
        )


@contextmanager
def encoded(settings: PhysicalSourceSettings) -> Iterator[EncodedSource]:
    """Open a source that writes windows, for the length of a `with`."""
    found = EncodedSource(settings)
    try:
        found.open()
        yield found
    finally:
        found.source.close()
