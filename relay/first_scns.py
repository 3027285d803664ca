"""The first SCN of each source: since when all its changes are in the ring, or were.

A source that is added to the settings of a relay with windows is captured after the ring's
newest window. So is one that is listed again after a time without it: its changes in between
are in no ring. A consumer with an older position is refused, as if they were overwritten, so
that it bootstraps; an empty answer would skip them silently.

The first SCNs are in a file beside the ring, written before a window of the new sources is
captured. The ring has the file's CRC32 and the generation of the writer that it belongs to: a
file that is lost, damaged or put back from another time is recognized, and so is a ring that a
version without such files has written to since. Nothing is known then of what is captured since
when, and all sources are captured since now.

A ring that begins anew needs no file: it refuses what came before it. A ring of an earlier
version has none, and all positions in it are served, as they were, but for sources that are new.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol
from zlib import crc32

from databus.daemon.files import narrow, replace_file
from databus.daemon.log_setup import about
from databus.relay.ring.event_selector import WINDOW_DONE, Position
from databus.relay.ring.layout import NEVER_SEALED
from databus.schemas.errors import RingError, ScnNotFoundError

log = logging.getLogger(__name__)

ALWAYS = 0  # captured since the ring began, or since a time that is not known


class FirstScn(NamedTuple):
    """After which SCN all changes of a source are captured; ALWAYS if the ring tells by itself."""

    scn: int = ALWAYS
    source: str = ""

    def check(self, asked: Position, min_scn: int) -> None:
        """Raise ScnNotFoundError for a position with changes after it that are not captured.

        `min_scn` is the SCN of the ring's oldest window.
        """
        # A position inside window `scn` needs the rest of that window, too.
        if self.scn > ALWAYS and asked != (self.scn, WINDOW_DONE) and asked[0] <= self.scn:
            advice = f"source {self.source} is captured only since it was listed, after {self.scn}"
            raise ScnNotFoundError(asked[0], max(min_scn, self.scn + 1), advice)


NO_LIMIT = FirstScn()


class SealedRing(Protocol):
    """What a ring knows of the file of first SCNs; see `Ring`."""

    sources_crc: int | None

    @property
    def max_scn(self) -> int:
        """SCN of the newest window."""
        ...

    def seal_sources(self, crc: int | None) -> None:
        """Store the CRC32 of a file that is on disk."""
        ...


class _UnknownError(Exception):
    """It is not known since when sources are captured; the text says why."""


class FirstScns:
    """The first SCNs of the listed sources of one ring, by name.

    `update` and `clear` are called by one thread at a time, `newest_of` by any.
    """

    def __init__(
        self,
        path: Path,
        physical_source: str,
        ids: Mapping[str, int],
        ring: SealedRing,
        new: Collection[str] = (),
    ) -> None:
        """`ids` has the listed sources; `new` those that no start before this one has listed."""
        self._path = path
        self._physical_source = physical_source
        self._ids = ids
        self._ring = ring
        self._new = new
        self._scns: Mapping[str, int] = dict.fromkeys(ids, ALWAYS)

    def update(self) -> None:
        """Store the first SCNs of sources that are listed now and were not; raise RingError.

        Capture continues after the ring's newest window.
        """
        scn = max(self._ring.max_scn, ALWAYS)
        known = about(physical_source=self._physical_source, scn=scn)
        try:
            before = self._load()
        except _UnknownError as error:
            text = "%s: %s; consumers of positions before scn %d are refused, and bootstrap"
            log.warning(text, self._physical_source, error, scn, extra=known)
            before = {}
        now = {name: before.get(name, scn) for name in self._ids}
        if now != before or self._ring.sources_crc in (None, NEVER_SEALED):
            self._save(now)
        self._scns = now
        if before and (added := [name for name in now if name not in before]):
            text = "%s: %s is captured after scn %d; consumers of older positions are refused"
            log.info(text, self._physical_source, ", ".join(added), scn, extra=known)

    def clear(self) -> None:
        """Forget them, for a ring that begins anew with all sources; raise RingError."""
        self._scns = dict.fromkeys(self._ids, ALWAYS)
        self._save(self._scns)

    def newest_of(self, src_ids: Collection[int] | None) -> FirstScn:
        """Return the newest first SCN of some sources; None for all sources."""
        found = [
            FirstScn(scn, name)
            for name, scn in self._scns.items()
            if src_ids is None or self._ids[name] in src_ids
        ]
        return max(found, default=NO_LIMIT)

    def _load(self) -> Mapping[str, int]:
        """Return the first SCNs that the ring was written with; raise _UnknownError, RingError."""
        content = _read(self._path)
        crc = self._ring.sources_crc
        if crc == NEVER_SEALED and (content is None or self._ring.max_scn <= ALWAYS):
            return {name: ALWAYS for name in self._ids if name not in self._new}
        if content is None:
            raise _UnknownError(f"file {self._path} of the sources' first SCNs is missing")
        if crc is None:
            raise _UnknownError("a version without first SCNs of sources has written to the ring")
        if crc != crc32(content):
            raise _UnknownError(
                f"file {self._path} of the sources' first SCNs is damaged, or of another time"
            )
        return _decode(content)

    def _save(self, scns: Mapping[str, int]) -> None:
        content = _encode(scns)
        try:
            replace_file(self._path, content)
        except OSError as error:
            raise RingError(f"the sources' first SCNs cannot be saved: {error}") from error
        self._ring.seal_sources(crc32(content))


def load_first_scns(path: Path) -> Mapping[str, int]:
    """Return the first SCNs in a file, by source; raise RingError."""
    try:
        return _decode(_read(path) or b"")
    except (ValueError, KeyError, TypeError):
        raise RingError(f"file {path} of the sources' first SCNs is damaged") from None


def _read(path: Path) -> bytes | None:
    """Return a file's content, None without one; it becomes private again. Raises RingError."""
    narrow(path)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RingError(f"the sources' first SCNs cannot be read: {error}") from error


def _encode(scns: Mapping[str, int]) -> bytes:
    text = json.dumps({"firstScns": dict(scns)}, separators=(",", ":"))
    return f"{text} crc={crc32(text.encode()):08x}\n".encode()


def _decode(content: bytes) -> dict[str, int]:
    """Return the first SCNs in a file's content; raise ValueError, KeyError or TypeError."""
    text, _, crc = content.decode("ascii").rpartition(" crc=")
    if int(crc, 16) != crc32(text.encode()):
        raise ValueError("wrong checksum")
    return {str(name): int(scn) for name, scn in json.loads(text)["firstScns"].items()}
