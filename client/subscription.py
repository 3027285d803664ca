"""The sources, filters and reader schemas of one registration.

`bind` combines them with a relay's answers to `/sources` and `/register`. The result has
everything needed to decode an event; an error says what does not fit. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple
from zlib import crc32

from databus.client.group.share import Share
from databus.conf.patterns import NamePatterns, is_pattern, unescaped
from databus.registry.compatibility import check_reader
from databus.schemas.avro_rows import RowCodec, row_codec, schema_id
from databus.schemas.columns.avro_columns import WriterSchema
from databus.schemas.errors import SchemaError, SchemaNotFoundError, UnknownSourceError
from databus.schemas.filters import EventFilter, filters_to_json
from databus.schemas.stream.row_event import NO_ROW_DIGEST

_NOTHING: Mapping[str, str] = MappingProxyType({})
_NO_FILTER: Mapping[str, EventFilter] = MappingProxyType({})


@dataclass(frozen=True)
class Subscription:
    """What one registration reads. Name and exact source list identify its checkpoint."""

    sources: tuple[str, ...]
    name: str = "default"
    filters: Mapping[str, EventFilter] = field(default_factory=lambda: _NO_FILTER)
    reader_schemas: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    batch_rows: int = 0  # windows are joined into batches of so many rows; 0 = none is
    share: Share | None = None  # of the rows, where the processes of a group share them
    conditions: Mapping[str, str] = field(default_factory=lambda: _NOTHING)  # SQL, by source
    auto_commit: bool = True  # a window is consumed when the next one is requested
    on_failure: str | Callable[..., Any] = "stop"  # see `consumer.OnFailure`
    place: str = ""  # begin here, whatever the checkpoint says: a `start`; "" = it says

    @property
    def key(self) -> tuple[str, tuple[str, ...]]:
        """What identifies it, and its checkpoint."""
        return self.name, self.sources

    @property
    def is_everything(self) -> bool:
        """Whether it wants all rows of its sources."""
        return not self.filters and self.share is None

    @property
    def sent_filters(self) -> Mapping[str, EventFilter]:
        """The filters that servers apply. A source can have only one: that of the share first."""
        if self.share is None:
            return self.filters
        return dict.fromkeys(self.sources, self.share.filter)

    def filters_json(self, src_ids: Mapping[str, int]) -> str | None:
        """Return the `filters` parameter for a server that gave the sources these ids."""
        filters = self.sent_filters
        if not filters:
            return None
        return filters_to_json({src_ids[name]: one for name, one in filters.items()})


class RegisteredSchema(NamedTuple):
    """One entry of a relay's answer to `/register`."""

    src_id: int
    version: int
    text: str


class Registered(NamedTuple):
    """A server's answers at registration: ids by source, and all schemas."""

    src_ids: Mapping[str, int]
    schemas: tuple[RegisteredSchema, ...]


class SourceBinding(NamedTuple):
    """A source at one relay.

    By the schema digest of an event: `codecs` decode its row into the reader's schema,
    `versions` are the schema's version numbers, `written` the schemas of decoded rows. `schemas`
    are the server's schema texts.
    """

    name: str
    src_id: int
    codecs: Mapping[bytes, RowCodec]
    versions: Mapping[bytes, int]
    schemas: tuple[RegisteredSchema, ...] = ()
    share: Share | None = None
    written: Mapping[bytes, WriterSchema] = MappingProxyType({})  # one object for each version


Bindings = Mapping[int, SourceBinding]


def schemas_of(bindings: Bindings) -> frozenset[tuple[int, bytes]]:
    """Return the (src_id, digest) pairs that events may have: `RowReader.known`."""
    return frozenset(
        (src_id, digest)
        for src_id, bound in bindings.items()
        # A truncate has no row, so its digest belongs to every source.
        for digest in (NO_ROW_DIGEST, *bound.versions)
    )


def find_ids(wanted: Sequence[str], offered: Mapping[str, int]) -> dict[str, int]:
    """Return the ids of the wanted sources; raises UnknownSourceError."""
    for name in wanted:
        if name not in offered:
            raise UnknownSourceError(name, sorted(offered))
    return {name: offered[name] for name in wanted}


def chosen_sources(texts: Sequence[str], known: Iterable[str]) -> tuple[str, ...]:
    """Return the sources that names and patterns choose.

    Names keep their order; sources that only patterns choose follow in alphabetical
    order. Raises UnknownSourceError for a name that is not known, and if none is chosen.
    """
    every, match = sorted(known), NamePatterns(texts).match
    named = [unescaped(text) for text in texts if not is_pattern(text)]
    for name in named:
        if name not in every:
            raise UnknownSourceError(name, every)
    found = tuple(dict.fromkeys([*filter(match, named), *filter(match, every)]))
    if not found:
        raise UnknownSourceError(",".join(texts), every)
    return found


def bind(
    subscription: Subscription, src_ids: Mapping[str, int], schemas: Iterable[RegisteredSchema]
) -> Bindings:
    """Check every version of every source and return the bindings that decode them.

    Raises SchemaNotFoundError if a source has none, SchemaError if one cannot be parsed,
    IncompatibleSchemaError if the reader schema cannot read rows of one of them.
    """
    found: dict[int, list[RegisteredSchema]] = {}
    for schema in schemas:
        found.setdefault(schema.src_id, []).append(schema)
    bindings = {}
    for name, src_id in src_ids.items():
        if src_id not in found:
            raise SchemaNotFoundError(f"the relay has no schema of source {name} ({src_id})")
        reader = subscription.reader_schemas.get(name)
        bound = _bind_source(name, src_id, found[src_id], reader)
        bindings[src_id] = bound._replace(share=subscription.share)
    return bindings


def _bind_source(
    source: str, src_id: int, schemas: Sequence[RegisteredSchema], reader: str | None
) -> SourceBinding:
    codecs, versions, written = {}, {}, {}
    for _, version, text in schemas:
        codec = _codec(source, version, text)
        if reader is not None:
            check_reader(source, text, reader)
            # Every version is checked now: a row that cannot be read must not stop the stream
            # later.
            codec = RowCodec.resolving(text, reader, has_durations=True)
        # Version 1 events name their schema by its MD5, version 2 events by its CRC32.
        schema = WriterSchema(source, src_id, version, codec.text)
        for digest in (schema_id(text), crc32(text.encode()).to_bytes(4, "big")):
            codecs[digest], versions[digest], written[digest] = codec, version, schema
    return SourceBinding(source, src_id, codecs, versions, tuple(schemas), None, written)


def _codec(source: str, version: int, text: str) -> RowCodec:
    try:
        return row_codec(text, has_durations=True)
    except SchemaError as error:
        raise SchemaError(f"version {version} of the schema of {source}: {error}") from error
