"""Tracks which schema version of each source the consumers have seen. Pure.

Consumers hold rows that were not written since an ALTER. They are told each new version
once: before its first event, or together with the DDL statement. The versions seen are
stored in the checkpoint, so that a restart reports the versions that came meanwhile, and
none twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

from databus.client.puller.buffer_items import BootstrapPage, ReadWindow
from databus.client.subscription import SourceBinding
from databus.registry.former_schemas import ids_of_now
from databus.schemas.avro_rows import schema_id
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.stream.row_event import NO_ROW_DIGEST, schemas_in
from databus.schemas.table_change import Step, Versions, change_scn

SEEN_KEY = "schemas_seen"  # of a checkpoint: source → schema id


class SchemaChange(NamedTuple):
    """The step from one version of a source to the next."""

    source: str
    step: Step


class _Seen(NamedTuple):
    versions: Mapping[str, str]  # by source
    digests: Mapping[int, bytes]  # by source id: digest of events that need no lookup


class SchemaWatch:
    """Finds the schema changes to report before a window's events. One thread."""

    def __init__(self, seen: Mapping[str, str] | None = None) -> None:
        self.seen: Mapping[str, str] = dict(seen or {})
        self._digests: dict[int, bytes] = {}
        self._coming: _Seen | None = None

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> SchemaWatch:
        """Return a watch with the versions that a checkpoint contains."""
        kept = checkpoint.extra.get(SEEN_KEY)
        return cls(kept if isinstance(kept, dict) else None)

    def forget(self) -> None:
        """Forget all versions: the consumers have no rows."""
        self.seen = {}
        self._digests.clear()

    def due(self, read: ReadWindow | BootstrapPage) -> list[SchemaChange]:
        """Return the changes from the versions seen to those of this window, in order.

        They count as seen after `take`.
        """
        self._coming = None  # left by a delivery that failed
        window = read.window
        # The usual case, and cheap: each row has the version of the row before it.
        schemas = schemas_in(window.events)
        if not window.statements and all(
            self._digests.get(src_id) == digest for src_id, digest in schemas
        ):
            return []
        found: list[SchemaChange] = []
        seen = dict(self.seen)
        by_name = {bound.name: bound for bound in read.bindings.values()}
        for _, told in window.statements:
            for name, digits in told.schemas.items():
                if name in by_name:
                    found += _advance(seen, by_name[name], bytes.fromhex(digits))
        for src_id, digest in schemas:
            if digest != NO_ROW_DIGEST:
                found += _advance(seen, read.bindings[src_id], digest)
        self._coming = _Seen(seen, dict(schemas.keys()))
        return found

    def take(self) -> None:
        """Mark the changes returned by `due` as seen."""
        coming, self._coming = self._coming, None
        if coming is not None:
            self.seen = coming.versions
            self._digests.update(coming.digests)


def _advance(seen: dict[str, str], bound: SourceBinding, digest: bytes) -> list[SchemaChange]:
    """Return the steps from the version seen of a source to `digest`; update `seen`."""
    texts = tuple(text for _, _, text in bound.schemas)
    text = _text_of(texts, digest)
    if text is None:
        return []
    last = _text_of(texts, bytes.fromhex(seen.get(bound.name, "")))
    # The first version that a consumer sees is no change.
    if last is None:
        seen[bound.name] = schema_id(text).hex()
        return []
    # A row of an older version, such as one delivered again, is no step back.
    if last == text or change_scn(text) < change_scn(last):
        return []
    steps = Versions(texts).since(last, change_scn(last), change_scn(text))
    if steps or change_scn(text) > change_scn(last):
        seen[bound.name] = schema_id(text).hex()
    return [SchemaChange(bound.name, step) for step in steps]


def _text_of(texts: tuple[str, ...], digest: bytes) -> str | None:
    """Return the schema text of a source that a digest of any kind names."""
    text = _by_digest(texts).get(digest)
    # A checkpoint or a relay of a former version has the ids of that version.
    return text if text is not None or not digest else _by_former_id(texts).get(digest)


@lru_cache(maxsize=256)
def _by_digest(texts: tuple[str, ...]) -> Mapping[bytes, str]:
    crcs = {crc32(text.encode()).to_bytes(4, "big"): text for text in texts}
    return crcs | {schema_id(text): text for text in texts}


@lru_cache(maxsize=256)
def _by_former_id(texts: tuple[str, ...]) -> Mapping[bytes, str]:
    known = _by_digest(texts)
    return {former: known[now] for former, now in ids_of_now(texts).items()}


def with_seen(checkpoint: Checkpoint, seen: Mapping[str, str]) -> Checkpoint:
    """Return the checkpoint with the versions seen."""
    return checkpoint.with_extra(**{SEEN_KEY: dict(seen)}) if seen else checkpoint
