"""Since when each source of a ring is captured, and where a table was stopped alone.

A source that is added to the settings of a relay with windows is captured after the ring's
newest window. So is one that is listed again after a time without it: its changes in between
are in no ring. A consumer with an older position is refused, as if they were overwritten, so
that it bootstraps; an empty answer would skip them silently.

A table whose rows or statements cannot be understood is stopped after the ring's newest window.
The windows after that are captured without its rows. Its consumers are sent all windows up to
there, and then an error; those of other sources do not notice it.

Both are in a file beside the ring, written before a window that depends on it is captured. The
ring has the file's CRC32 and the generation of the writer that it belongs to: a file that is lost,
damaged or put back from another time is recognized, and so is a ring that a version without such
files has written to since. Nothing is known then of what is captured since when, and all sources
are captured since now. A file names the one that it replaces, so a relay that was killed between
the two writes does not take it for another one.

Capture that is begun again writes windows a second time, and a change of what is captured lets a
catch-up read older windows with other events than the ring has. `span` says how places inside such
windows are known again.

A ring that begins anew needs no file: it refuses what came before it. A ring of an earlier
version has none, and all positions in it are served, as they were, but for sources that are new.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol
from zlib import crc32

from databus.daemon.files import narrow, replace_file
from databus.daemon.log_setup import about
from databus.relay.ring.layout import NEVER_SEALED
from databus.relay.span import ALWAYS, MOST_MAKEUPS, FirstScn, Hole, Span, TableStop
from databus.schemas.errors import RingError
from databus.schemas.scn import MAX_SCN

log = logging.getLogger(__name__)

SPANS_SUFFIX = ".sources.json"  # of the file's name, after that of the physical source


class SealedRing(Protocol):
    """What a ring knows of the file of spans; see `Ring`."""

    sources_crc: int | None

    @property
    def ring_id(self) -> int:
        """Changes when the ring begins anew."""
        ...

    @property
    def max_scn(self) -> int:
        """SCN of the newest window."""
        ...

    def seal_sources(self, crc: int | None) -> None:
        """Store the CRC32 of a file that is on disk."""
        ...


class _UnknownError(Exception):
    """It is not known since when sources are captured; the text says why."""


class SpansContent(NamedTuple):
    """The content of a file; `replaces` is the CRC32 of the file before it.

    `is_new`: there was no file. Then nothing is known of the windows before the next start.
    """

    first_scns: Mapping[str, int]
    stops: Mapping[str, TableStop]
    holes: Mapping[str, Hole] = MappingProxyType({})
    rewritten_until: int = ALWAYS
    makeup: int = 0
    unlike_until: int = MAX_SCN
    replaces: int | None = None
    is_new: bool = False

    def rewritten(self, until_scn: int) -> SpansContent:
        """Return the content for a ring whose windows up to an SCN may be captured again."""
        return self.changed()._replace(rewritten_until=max(until_scn, self.rewritten_until))

    def changed(self) -> SpansContent:
        """Return the content with another makeup."""
        return self._replace(makeup=(self.makeup + 1) % MOST_MAKEUPS)

    def span(self, ids: Mapping[str, int], src_ids: Collection[int] | None) -> Span:
        """Return the span of some of the sources `ids`, None for all of them."""
        firsts = [
            FirstScn(scn, name)
            for name, scn in self.first_scns.items()
            if src_ids is None or ids[name] in src_ids
        ]
        stops = [
            stop for name, stop in self.stops.items() if src_ids is None or ids[name] in src_ids
        ]
        holes = [one for name, one in self.holes.items() if src_ids is None or ids[name] in src_ids]
        hole = None
        if holes:
            last = max(holes, key=lambda one: one.until_scn)
            hole = last._replace(after_scn=min(one.after_scn for one in holes))
        first, stop = max(firsts, default=FirstScn()), min(stops, default=None)
        # A catch-up has the rows of a table that was stopped.
        unlike_until = MAX_SCN if self.stops else self.unlike_until
        return Span(first, stop, self.rewritten_until, self.makeup, unlike_until, hole=hole)


def _nothing() -> None:
    """Tell nobody."""


def _unwritten(first_scns: Mapping[str, int]) -> SpansContent:
    """Return the content without a file: no number of an earlier one is to come again."""
    return SpansContent(first_scns, {}, makeup=secrets.randbelow(MOST_MAKEUPS), is_new=True)


class CapturedSpans:
    """The spans of the listed sources of one ring, by name.

    `update`, `stop`, `lower` and `clear` are called by one thread at a time, the others by any.
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
        self._content = SpansContent(dict.fromkeys(ids, ALWAYS), {})
        self.revision = 0
        # Called with each new revision, before a window that depends on it is captured.
        self.on_change: Callable[[], None] = _nothing

    def relist(self, ids: Mapping[str, int], whole: Collection[str] = ()) -> None:
        """Capture other sources than before, after the ring's newest window; raise RingError.

        Those that are `whole` had no rows before.
        """
        before = self._ids
        # Readers look up the id of each source in the content, before and after the change.
        self._ids = {**before, **ids}
        try:
            self.update(ids, whole)
        except BaseException:
            self._ids = before
            raise
        self._ids = ids

    def update(self, ids: Mapping[str, int] | None = None, whole: Collection[str] = ()) -> None:
        """Store the first SCNs of sources that are listed now and were not; raise RingError.

        Capture continues after the ring's newest window.
        """
        ids = self._ids if ids is None else ids
        scn = max(self._ring.max_scn, ALWAYS)
        known = about(physical_source=self._physical_source, scn=scn)
        try:
            before = self._load()
        except _UnknownError as error:
            text = "%s: %s; consumers of positions before scn %d are refused, and bootstrap"
            log.warning(text, self._physical_source, error, scn, extra=known)
            before = _unwritten({})
        firsts = {n: before.first_scns.get(n, ALWAYS if n in whole else scn) for n in ids}
        # A source that is not listed any more is captured anew if it is listed again.
        stops = {name: one for name, one in before.stops.items() if name in ids}
        # A ring that was put back from a copy may end before the stop.
        lost = [one.scn for one in stops.values() if one.scn > scn]
        holes = {n: h._replace(until_scn=min(h.until_scn, scn)) for n, h in before.holes.items()}
        holes = {n: h for n, h in holes.items() if n in firsts and h.until_scn > h.after_scn}
        now = before._replace(first_scns=firsts, stops=_lowered(stops, scn), holes=holes)
        if before.first_scns.keys() != firsts.keys():
            # Windows up to here are of other sources than those that a catch-up reads now.
            now = now.changed()._replace(unlike_until=scn)
        elif not before.is_new:
            now = now._replace(unlike_until=min(scn, now.unlike_until))
        # Also if the relay was killed while a ring began anew: places told just before are of
        # windows that are not there any more.
        if until := max([now.rewritten_until, *lost]):
            now = now.rewritten(until)
        if now != before or self._ring.sources_crc in (None, NEVER_SEALED):
            self._save(now)
        self._take(now)
        added = [name for name in firsts if name not in before.first_scns]
        if before.first_scns and added:
            text = "%s: %s is captured after scn %d; consumers of older positions are refused"
            log.info(text, self._physical_source, ", ".join(added), scn, extra=known)

    def stop(self, sources: Sequence[str], problem: str, since: float) -> bool:
        """Stop sources alone after the ring's newest window; return whether that is done.

        Not if they are stopped already, or if no other source would be left: then there is nobody
        to capture on for. Raises RingError if it cannot be saved; then nothing is stopped.
        """
        before = set(self.stops)
        stopped = before.union(sources)
        scn = self._ring.max_scn
        # A ring that never had a window has no place for a stop.
        if scn < ALWAYS or stopped == before or not stopped < set(self._ids):
            return False
        new = {name: TableStop(scn, name, problem, since) for name in stopped - before}
        content = self._content.changed()._replace(stops={**self.stops, **new})
        self._save(content)
        self._take(content)
        return True

    def take_in(self, source: str) -> None:
        """Capture a stopped source again from the ring's newest window on; raise RingError.

        The windows since its stop stay without its rows.
        """
        content, scn = self._content, self._ring.max_scn
        stops = {name: one for name, one in content.stops.items() if name != source}
        begin = content.stops[source].scn
        before = content.holes.get(source)
        if before is not None:
            begin = min(begin, before.after_scn)  # one hole instead of two: nothing is missed
        holes = {**content.holes, source: Hole(begin, scn, source)}
        unlike_until = max(content.unlike_until, scn)
        content = content.changed()._replace(stops=stops, holes=holes, unlike_until=unlike_until)
        self._save(content)
        self._take(content)

    def lower(self, scn: int, newest_scn: int) -> None:
        """Let no stop be after `scn`, from which the ring is to begin anew; raise RingError.

        `newest_scn` is that of the newest window that it has. To be called before the ring begins
        anew: whatever fails behind it, no window is captured again without the rows that are
        said to be in it.
        """
        stops = _lowered(self.stops, scn)
        content = self._content._replace(stops=stops).rewritten(newest_scn)
        self._save(content)
        self._take(content)

    def clear(self) -> None:
        """Forget them, for a ring that has begun anew with all sources; raise RingError."""
        firsts = dict.fromkeys(self._ids, ALWAYS)
        # Places were told until the ring had begun anew.
        until = self._content.rewritten_until
        content = self._content._replace(first_scns=firsts, stops={}, holes={}).rewritten(until)
        self._save(content)
        self._take(content)

    @property
    def content(self) -> SpansContent:
        """A copy of the content, for another process."""
        content = self._content
        firsts, stops, holes = content.first_scns, content.stops, content.holes
        return content._replace(first_scns=dict(firsts), stops=dict(stops), holes=dict(holes))

    @property
    def makeup(self) -> int:
        """The number of what is captured now; see `Span`."""
        return self._content.makeup

    @property
    def stops(self) -> Mapping[str, TableStop]:
        """The sources that are stopped alone."""
        return self._content.stops

    def complete_after(self, ring_id: int) -> Mapping[str, int]:
        """Return the first SCN of each source that is not stopped.

        None for a ring that is not this one: it has begun anew since.
        """
        content = self._content
        if ring_id != self._ring.ring_id:
            return {}
        firsts = {n: scn for n, scn in content.first_scns.items() if n not in content.stops}
        return firsts | {n: h.until_scn for n, h in content.holes.items() if n in firsts}

    def has_all(self, src_id: int, scn: int) -> bool:
        """Return whether window `scn` has all rows of a source."""
        if src_id not in self._ids.values():
            return False
        span = self.of({src_id})
        if span.hole is not None and span.hole.after_scn < scn <= span.hole.until_scn:
            return False
        return span.first.scn < scn and (span.stop is None or scn <= span.stop.scn)

    def of(self, src_ids: Collection[int] | None) -> Span:
        """Return the span of some sources, from the newest first SCN to the oldest stop."""
        return self._content.span(self._ids, src_ids)

    def _take(self, content: SpansContent) -> None:
        # The revision last: a reader that sees it sees the content.
        self._content = content
        self.revision += 1
        self.on_change()

    def _load(self) -> SpansContent:
        """Return what the ring was written with; raise _UnknownError, RingError."""
        content = _read(self._path)
        crc = self._ring.sources_crc
        if crc == NEVER_SEALED and (content is None or self._ring.max_scn <= ALWAYS):
            return _unwritten({name: ALWAYS for name in self._ids if name not in self._new})
        if content is None:
            raise _UnknownError(f"file {self._path} of the captured sources is missing")
        if crc is None:
            raise _UnknownError("a version without a file of captured sources has written the ring")
        if crc == crc32(content):
            return _decode(content)
        found = None if crc == NEVER_SEALED else _decoded(content)
        if found is None or found.replaces != crc:
            raise _UnknownError(
                f"file {self._path} of the captured sources is damaged, or of another time"
            )
        self._ring.seal_sources(crc32(content))  # the relay was killed before it did
        return found

    def _save(self, content: SpansContent) -> None:
        data = _encode(content._replace(replaces=self._ring.sources_crc))
        try:
            replace_file(self._path, data)
        except OSError as error:
            raise RingError(f"the file of captured sources cannot be saved: {error}") from error
        self._ring.seal_sources(crc32(data))


def _lowered(stops: Mapping[str, TableStop], scn: int) -> dict[str, TableStop]:
    """Return the stops, none of them after an SCN."""
    return {name: one._replace(scn=min(one.scn, scn)) for name, one in stops.items()}


def load_first_scns(path: Path) -> Mapping[str, int]:
    """Return the first SCNs in a file, by source; raise RingError."""
    found = _decoded(_read(path) or b"")
    if found is None:
        raise RingError(f"file {path} of the captured sources is damaged")
    return found.first_scns


def load_stops(path: Path) -> Sequence[TableStop]:
    """Return the stopped sources in a file, none without one; raise RingError."""
    content = _read(path)
    if content is None:
        return []
    found = _decoded(content)
    if found is None:
        raise RingError(f"file {path} of the captured sources is damaged")
    return list(found.stops.values())


def _read(path: Path) -> bytes | None:
    """Return a file's content, None without one; it becomes private again. Raises RingError."""
    narrow(path)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RingError(f"the file of captured sources cannot be read: {error}") from error


def _encode(content: SpansContent) -> bytes:
    stops = {name: [s.scn, s.since, s.problem] for name, s in content.stops.items()}
    holes = {name: [hole.after_scn, hole.until_scn] for name, hole in content.holes.items()}
    value = {
        "holes": holes,
        "firstScns": dict(content.first_scns),
        "stops": stops,
        "rewrittenUntil": content.rewritten_until,
        "rewrites": content.makeup,
        "unlikeUntil": content.unlike_until,
        "replaces": content.replaces,
    }
    text = json.dumps(value, separators=(",", ":"))
    return f"{text} crc={crc32(text.encode()):08x}\n".encode()


def _decoded(content: bytes) -> SpansContent | None:
    """Return a file's content; None if it is damaged."""
    try:
        return _decode(content)
    except (ValueError, KeyError, TypeError):
        return None


def _decode(content: bytes) -> SpansContent:
    """Return a file's content; raise ValueError, KeyError or TypeError."""
    text, _, crc = content.decode("ascii").rpartition(" crc=")
    if int(crc, 16) != crc32(text.encode()):
        raise ValueError("wrong checksum")
    value: dict[str, Any] = json.loads(text)
    stops = {
        str(name): TableStop(int(scn), str(name), str(problem), float(since))
        for name, (scn, since, problem) in value.get("stops", {}).items()
    }
    holes = {
        str(name): Hole(int(after), int(until), str(name))
        for name, (after, until) in value.get("holes", {}).items()
    }
    firsts = {str(name): int(scn) for name, scn in value["firstScns"].items()}
    return SpansContent(
        firsts,
        stops,
        holes,
        value.get("rewrittenUntil", ALWAYS),
        value.get("rewrites", 0),
        value.get("unlikeUntil", MAX_SCN),
        value.get("replaces"),
    )
