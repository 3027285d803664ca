"""What an archive holds of one segment, and how its objects are named. Pure.

    BASE/SOURCE/RING/                 the logs of one ring of a physical source
        NAME.DIGEST.segment           a sealed segment, byte for byte
        NAME.DIGEST.json              its manifest, written last: the proof that it is whole
        schemas/SOURCE.VERSION.json   the schemas of its rows, written before the manifest

RING is the ring's id in 16 hexadecimal digits, DIGEST the first 16 of the segment's SHA-256. So
neither another relay nor a log of another ring has the same names, and nothing is overwritten.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from databus.relay.log.gtids.frame_gtids import GtidRanges, prefix_bytes, prefix_text
from databus.relay.log.layout import UNKNOWN_SCN, SegmentHeader
from databus.relay.log.segment import Segment, SegmentEnd
from databus.schemas.errors import RelayLogError

SCHEMAS = "schemas"
_FORMAT = 1
_MANIFEST = re.compile(r"\d{19}-\d{4}-\d{2}-\d{2}T\d{2}Z\.[0-9a-f]{16}\.json")

SegmentKey = tuple[int, int, int, int]  # ring, position, times of creation and of sealing


class ArchiveError(RelayLogError):
    """The archive cannot be read or written now, or has not what it should have."""


class ArchiveDamagedError(ArchiveError):
    """What the archive has of a segment is not what was archived."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One archived segment; the mark of its header is in the segment alone.

    `sources` are those that the relay captured when it was archived, each with the SCN after which
    all its changes are in the log; 0 = since the log's ring began. `gtids` are those of its rows;
    None if it has no index of them.
    """

    header: SegmentHeader
    end: SegmentEnd
    sealed_ns: int
    size_bytes: int
    sha256: str
    sources: tuple[tuple[str, int], ...] = ()
    gtids: GtidRanges | None = field(default=None, hash=False)

    @property
    def folder(self) -> str:
        """The folder of its log, below the archive's base."""
        return ring_folder(self.header.source, self.header.ring_id)

    @property
    def stem(self) -> str:
        """The name that both its objects have, without what differs."""
        return f"{self.header.name.removesuffix('.segment')}.{self.sha256[:16]}"

    @property
    def segment_path(self) -> str:
        """The path of the segment, below the archive's base."""
        return f"{self.folder}/{self.stem}.segment"

    @property
    def path(self) -> str:
        """The path of the manifest, below the archive's base."""
        return f"{self.folder}/{self.stem}.json"

    @property
    def complete_after(self) -> int:
        """The SCN after which it has every window up to its end."""
        header = self.header
        return header.first_scn if header.prev_scn == UNKNOWN_SCN else header.prev_scn

    @property
    def key(self) -> SegmentKey:
        """What tells it from every other segment."""
        return _key(self.header, self.sealed_ns)

    def is_of(self, segment: Segment) -> bool:
        """Return whether it is that of a segment on disk: by ring, place, times and ends."""
        is_same = self.key == key_of(segment) and self.end == segment.end
        return is_same and self.header == segment.header._replace(mark=None)

    def to_json(self) -> str:
        """Return the manifest's text."""
        header, end = self.header, self.end
        value = {
            "format": _FORMAT,
            "source": header.source,
            "ringId": f"{header.ring_id:016x}",
            "bytes": self.size_bytes,
            "sha256": self.sha256,
            "prevScn": header.prev_scn,
            "firstScn": header.first_scn,
            "lastScn": end.scn,
            "position": header.position,
            "endPosition": end.position,
            "endOffset": end.offset,
            "firstTimestampNs": header.first_timestamp_ns,
            "lastTimestampNs": end.timestamp_ns,
            "newestTimestampBeforeNs": header.newest_timestamp_ns,
            "newestTimestampNs": end.newest_timestamp_ns,
            "createdNs": header.created_ns,
            "sealedNs": self.sealed_ns,
            "sources": dict(self.sources),
        }
        if self.gtids is not None:
            value["gtids"] = {prefix_text(one): ends for one, ends in self.gtids.items()}
        return json.dumps(value, indent=1)

    @classmethod
    def from_json(cls, path: str, text: str | bytes) -> Manifest:
        """Read a manifest; raises ArchiveError."""
        try:
            return cls._of(json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ArchiveError(f"archive: {path} is no manifest of a segment: {error!r}") from error

    @classmethod
    def _of(cls, value: Mapping[str, Any]) -> Manifest:
        if value["format"] != _FORMAT:
            raise ValueError(f"format {value['format']}, not {_FORMAT}")
        header = SegmentHeader(
            value["source"],
            int(value["ringId"], 16),
            value["position"],
            value["prevScn"],
            value["firstScn"],
            value["firstTimestampNs"],
            value["newestTimestampBeforeNs"],
            value["createdNs"],
            None,
        )
        end = SegmentEnd(
            value["endPosition"],
            value["endOffset"],
            value["lastScn"],
            value["lastTimestampNs"],
            value["newestTimestampNs"],
        )
        sources = tuple((str(name), int(scn)) for name, scn in value["sources"].items())
        listed, gtids = value.get("gtids"), None
        if listed is not None:
            gtids = {
                prefix_bytes(one): (int(low), int(high)) for one, (low, high) in listed.items()
            }
        facts = value["sealedNs"], value["bytes"], value["sha256"]
        return cls(header, end, *facts, sources, gtids)


def ring_folder(source: str, ring_id: int) -> str:
    """Return the folder of a ring's logs, below the archive's base."""
    return f"{source}/{ring_id:016x}"


def is_manifest(name: str) -> bool:
    """Return whether a file of a log's folder is a manifest."""
    return _MANIFEST.fullmatch(name) is not None


def key_of(segment: Segment) -> SegmentKey:
    """Return what tells a sealed segment from every other one."""
    return _key(segment.header, segment.sealed_ns)


def _key(header: SegmentHeader, sealed_ns: int) -> SegmentKey:
    return header.ring_id, header.position, header.created_ns, sealed_ns


def chain_before(manifests: Iterable[Manifest], begin: SegmentHeader) -> tuple[Manifest, ...]:
    """Return the segments that a segment continues, one after the other, oldest first.

    All are of one ring. Of several with the same end, the one that was sealed last is taken.
    """
    ends = {
        (one.end.scn, one.end.position): one
        for one in sorted(manifests, key=lambda one: one.sealed_ns)
    }
    found: list[Manifest] = []
    while (before := ends.get((begin.prev_scn, begin.position))) is not None:
        if before.header.position >= begin.position:
            break  # it is empty
        if before.end.newest_timestamp_ns != begin.newest_timestamp_ns:
            break  # it is of another log, with the same numbers by chance
        found.append(before)
        begin = before.header
    return tuple(reversed(found))


def between(manifests: Iterable[Manifest], after_scn: int, until_scn: int) -> tuple[Manifest, ...]:
    """Return the segments with windows after an SCN, up to another one."""
    return tuple(
        one for one in manifests if one.end.scn > after_scn and one.header.first_scn <= until_scn
    )


def newest_chain(manifests: Iterable[Manifest]) -> tuple[Manifest, ...]:
    """Return the segments of the log that was written last, oldest first."""
    listed = list(manifests)
    if not listed:
        return ()
    newest = max(listed, key=lambda one: (one.sealed_ns, one.header.position))
    return (*chain_before(listed, newest.header), newest)
