"""`databus log`: look at a relay log, check it, cut it and export it, without a relay.

A relay may be writing the log meanwhile: `list`, `show`, `verify` and `export` read what is on
disk, up to the last whole window. Only `cut` needs the relay to be stopped. Instead of a folder,
all but `cut` take the URI of an archive, and then read the log that was written last.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, NamedTuple

import click
from rich.console import Console
from rich.table import Table

from databus.conf.loading import load_settings
from databus.conf.settings import RelaySettings
from databus.daemon.files import FileHeldError, open_locked
from databus.registry.registry import SchemaRegistry
from databus.registry.store import open_store
from databus.relay.log.archive.cache import ArchivedSegment
from databus.relay.log.archive.manifest import ArchiveError
from databus.relay.log.archive.reading import ArchivedLog, ArchiveReader
from databus.relay.log.directory import DELETED, Found, find_segments, folders_aside, log_folder
from databus.relay.log.gtids.frame_gtids import GtidRanges, merged, prefix_text
from databus.relay.log.reader import LogReader, SegmentTuple
from databus.relay.log.segment import Segment, segment_paths
from databus.relay.log.verify import verify_segment
from databus.relay.log.writer import LOCK_FILE
from databus.relay.ring.event_selector import WINDOW_DONE
from databus.schemas.avro_rows import schema_id
from databus.schemas.errors import RelayLogDamagedError, RelayLogError
from databus.schemas.event.v2 import SMALLEST_BYTES, peek
from databus.schemas.rendering import AnswerForm, Output, choose_render

_CHUNK_BYTES = 4 << 20

_CACHE_BYTES = 1 << 30  # of archived segments
_FOLDER = click.argument("folder", required=False, metavar="[FOLDER|URI]")
_CONFIG = click.option(
    "-c",
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Settings of the relay, instead of FOLDER.",
)
_SOURCE = click.option("--source", help="Physical source, if the settings have several with a log.")


class Place(NamedTuple):
    """Where a log is, and the settings of its relay if they were given."""

    folder: Path
    settings: RelaySettings | None

    def __str__(self) -> str:
        return str(self.folder)

    def find(self) -> Found:
        """Return the log's segments."""
        return find_segments(self.folder)

    def copy(self, segment: Segment) -> AbstractContextManager[Path]:
        """Return the file of a segment."""
        return nullcontext(segment.path)

    def sound_copy(self, segment: Segment) -> str:
        """Return what to do with a damaged segment, by what the archive of the settings has."""
        sources = () if self.settings is None else self.settings.physical_sources
        uris = [s.log.archive for s in sources if s.log and s.name == segment.header.source]
        if not uris or uris[0] is None or not segment.is_sealed:
            return ""
        try:
            with _reading(uris[0]) as reader:
                copy = reader.find_copy(segment)
                if copy is None:
                    return "; the archive has no copy of it"
                with reader.copy(copy) as path:
                    verify_segment(path)
        except (RelayLogDamagedError, ArchiveError) as error:
            return f"; its copy in the archive is of no use: {error}"
        return (
            f"; {reader.store}/{copy.manifest.segment_path} is sound, and a relay reads that "
            "instead. To mend it, stop the relay, and copy that over it"
        )

    def schema_text(self) -> Callable[[bytes], str]:
        """Return what finds a schema by its id; raises UsageError."""
        if self.settings is None:
            raise click.UsageError("--json needs the schemas: give --config RELAY.toml")
        registry = SchemaRegistry(open_store(self.settings.data_dir, self.settings.schema_dir))
        return lambda digest: registry.by_id(digest).text


class ArchivedPlace(NamedTuple):
    """The logs of one physical source in an archive; `logs` has the one written last at its end."""

    reader: ArchiveReader
    logs: list[ArchivedLog]

    def __str__(self) -> str:
        return f"{self.reader.store}"

    def find(self) -> Found:
        """Return the segments of the log that was written last, and those of other logs."""
        if not self.logs:
            return Found((), (), (), ())
        newest = self.logs[-1]
        others = [one for log in self.logs[:-1] for one in (*log.others, *log.log)]
        read = self.reader.segments
        return Found(read(newest.log), read([*others, *newest.others]), (), ())

    def copy(self, segment: Segment) -> AbstractContextManager[Path]:
        """Return a copy of a segment, whose digest is checked; raises ArchiveError."""
        assert isinstance(segment, ArchivedSegment)
        return self.reader.copy(segment)

    def sound_copy(self, segment: Segment) -> str:  # noqa: ARG002
        """Return "": this is the archive."""
        return ""

    def schema_text(self) -> Callable[[bytes], str]:
        """Return what finds a schema by its id."""
        found = self.reader.schemas(self.logs[-1].folder) if self.logs else []
        texts = {schema_id(one.text): one.text for one in found}
        return texts.__getitem__


@click.group()
def log() -> None:
    """Look at a relay log, check it, cut it and export it.

    Example: `databus log show -c relay.toml`
    """


@log.command("list")
@_FOLDER
@_CONFIG
@_SOURCE
def list_segments(folder: str | None, config: Path | None, source: str | None) -> None:
    """List the segments, the oldest first.

    Those that are not part of the log, because a hole lies between, are listed with the reason.

    Example: `databus log list -c relay.toml`
    """
    place = _place(folder, config, source)
    found = place.find()
    apart = "before a hole" if isinstance(place, Place) else "of another log"
    table = Table("segment", "first SCN", "last SCN", "from", "to", "bytes", "state")
    for segment in found.before:
        table.add_row(*_row(segment), apart)
    for segment in found.log:
        state = segment.damage or ("sealed" if segment.is_sealed else "being written")
        table.add_row(*_row(segment), state)
    for error in found.unreadable:
        table.add_row(Path(error.path).name, "-", "-", "-", "-", "-", error.problem)
    Console(width=160, highlight=False).print(table if table.row_count else "no segments yet")


@log.command()
@_FOLDER
@_CONFIG
@_SOURCE
def show(folder: str | None, config: Path | None, source: str | None) -> None:
    """Show what the log holds, from when to when, as JSON.

    Example: `databus log show -c relay.toml`
    """
    place = _place(folder, config, source)
    found = place.find()
    folders = folders_aside(place.folder) if isinstance(place, Place) else []
    aside = [path for one in folders for path in segment_paths(one)]
    log_, first = found.log, found.log[0] if found.log else None
    end = log_[-1].end if log_ else None
    value = {
        "folder": str(place),
        "physicalSource": None if first is None else first.header.source,
        "minScn": None if first is None else first.header.first_scn,
        "prevScn": None if first is None else _known(first.header.prev_scn),
        "maxScn": None if end is None else end.scn,
        "oldest": None if first is None else _time(first.header.first_timestamp_ns),
        "newest": None if end is None else _time(end.timestamp_ns),
        "segments": len(log_),
        "bytes": sum(segment.size_bytes for segment in log_),
        "eventBytes": 0 if first is None or end is None else end.position - first.header.position,
        "gtids": {prefix_text(one): f"{low}-{high}" for one, (low, high) in _gtids(log_).items()},
        "segmentsWithoutGtidIndex": sum(_lacks_gtids(segment) for segment in log_),
        "beforeAHole": len(found.before),
        "unreadable": [str(error) for error in found.unreadable],
        "asideBytes": sum(path.stat().st_size for path in aside),
    }
    click.echo(json.dumps(value, indent=2))


@log.command()
@_FOLDER
@_CONFIG
@_SOURCE
def verify(folder: str | None, config: Path | None, source: str | None) -> None:
    """Check every byte of every segment, and that none is missing between them.

    Exits with 1 if something is wrong. What a relay is just writing is checked up to its last
    whole window.

    Example: `databus log verify -c relay.toml`
    """
    place = _place(folder, config, source)
    found = place.find()
    problems = [str(error) for error in found.unreadable]
    frames = 0
    for segment in (*found.before, *found.log):
        try:
            # The newest one grows meanwhile, or was left by a kill: its scan has proved it.
            if segment.is_sealed or segment is not found.log[-1]:
                with place.copy(segment) as path:
                    frames += verify_segment(path)
            elif segment.index is not None:
                frames += len(segment.index)
                if segment.has_more:
                    text = f"{segment.damage}, and whole frames lie behind that"
                    problems.append(str(RelayLogDamagedError(str(segment.path), text)))
        except (RelayLogDamagedError, ArchiveError) as error:
            copy = place.sound_copy(segment) if isinstance(error, RelayLogDamagedError) else ""
            problems.append(f"{error}{copy}")
    if found.before and isinstance(place, Place):
        last = found.before[-1].path.name
        problems.append(f"there is a hole after {last}: what is before it is not served")
    for problem in problems:
        click.echo(problem)
    without = sum(map(_lacks_gtids, found.log))
    if without:
        click.echo(
            f"{without} segments have no index of GTIDs: all their frames are searched for one"
        )
    click.echo(f"{frames} frames in {_count(found)} segments: {len(problems)} problems")
    raise SystemExit(1 if problems else 0)


@log.command()
@_FOLDER
@_CONFIG
@_SOURCE
@click.option(
    "--before",
    "scn",
    type=click.IntRange(min=1),
    required=True,
    help="Delete the segments whose windows are all older than this SCN.",
)
def cut(folder: str | None, config: Path | None, source: str | None, scn: int) -> None:
    """Delete the oldest segments; the relay must not be running.

    The newest segment stays. Logs that were moved aside are deleted as a whole.

    Example: `databus log cut -c relay.toml --before 4294968030`
    """
    place = _place(folder, config, source)
    if isinstance(place, ArchivedPlace):
        raise click.UsageError("an archive is not cut: set archive_retention_hours or …_bytes")
    try:
        lock = open_locked(place.folder / LOCK_FILE)
    except FileHeldError:
        raise RelayLogError(f"relay log {place.folder}: a relay is writing it; stop it") from None
    found = find_segments(place.folder)
    old = [segment.path for segment in (*found.before, *found.log[:-1]) if segment.end.scn < scn]
    old += [path for one in folders_aside(place.folder) for path in segment_paths(one)]
    for path in old:
        path.rename(path.with_name(path.name + DELETED))  # the relay deletes it at its start
        click.echo(f"deleted {path.name}")
    kept = [segment for segment in found.log if segment.path not in old]
    click.echo(
        f"{len(kept)} segments are left, from scn {kept[0].header.first_scn if kept else '-'}"
    )
    os.close(lock)


@log.command()
@_FOLDER
@_CONFIG
@_SOURCE
@click.option("--after", "after_scn", type=int, help="Begin after this SCN. Default: the oldest.")
@click.option("--until", "until_scn", type=int, help="End with this SCN. Default: the newest.")
@click.option("--json", "is_json", is_flag=True, help="A line of JSON for each event, with values.")
@click.option(
    "--out",
    type=click.File("wb"),
    default="-",
    help="File to write. Default: standard output.",
)
def export(
    folder: str | None,
    config: Path | None,
    source: str | None,
    after_scn: int | None,
    until_scn: int | None,
    is_json: bool,
    out: IO[bytes],
) -> None:
    """Write whole windows to a file: version 2 events as /stream sends them, or JSON.

    With --json, --config is needed for the schemas; an archive has them itself.

    Example: `databus log export -c relay.toml --json --out changes.jsonl`
    """
    place = _place(folder, config, source)
    render = _json_render(place) if is_json else None
    found = place.find()
    if found.before or found.unreadable:
        text = "Warning: there is a hole, or another log; only the newest one is written"
        click.echo(text, err=True)
    reader = LogReader(SegmentTuple(found.log))
    try:
        for event in _events(reader, after_scn, until_scn):
            out.write(event if render is None else render(event))
    finally:
        reader.close()


def _events(reader: LogReader, after_scn: int | None, until_scn: int | None) -> Iterator[bytes]:
    """Yield the events after an SCN; raise ScnNotFoundError."""
    position: int | None = reader.head
    if after_scn is not None:
        position = reader.find(after_scn, WINDOW_DONE)
    while position is not None and position < reader.tail:
        data = reader.read(position, _CHUNK_BYTES)
        at = 0
        while len(data) - at >= SMALLEST_BYTES and at + (header := peek(data, at)).length <= len(
            data
        ):
            if until_scn is not None and header.scn > until_scn:
                return
            yield data[at : at + header.length]
            at += header.length
        if not at:  # an event larger than a chunk
            size = peek(data).length
            yield reader.read(position, size)
            at = size
        position += at


def _json_render(place: Place | ArchivedPlace) -> Callable[[bytes], bytes]:
    form = AnswerForm(_CHUNK_BYTES, Output.JSON_PLAIN_VALUE)
    render = choose_render(form, place.schema_text())
    assert render is not None
    return render


def _place(folder: str | None, config: Path | None, source: str | None) -> Place | ArchivedPlace:
    """Return the folder of a log; raise UsageError or RelayLogError."""
    if (folder is None) == (config is None):
        raise click.UsageError("give either FOLDER, the URI of an archive, or --config RELAY.toml")
    if folder is not None:
        if "://" in folder:
            return _archived_place(folder, source)
        return Place(_with_log(Path(folder)), None)
    assert config is not None
    settings = load_settings(config, RelaySettings)
    logs = {one.name: one for one in settings.physical_sources if one.log is not None}
    name = _only(source, list(logs), f"the settings {config}")
    return Place(_with_log(log_folder(settings.data_dir, logs[name])), settings)


def _with_log(folder: Path) -> Path:
    """Return a folder in which a relay has begun a log; raise UsageError for another one."""
    if not folder.is_dir():
        raise click.UsageError(f"{folder} is no folder: a relay makes it when it begins its log")
    if not (folder / LOCK_FILE).exists() and not segment_paths(folder):
        raise click.UsageError(
            f"{folder} has no relay log: that of a relay is in <data_dir>/<source>.relay-log, or "
            "in `dir` of its settings' `log`; -c RELAY.toml finds it"
        )
    return folder


def _archived_place(uri: str, source: str | None) -> ArchivedPlace:
    """Return the logs of a physical source in an archive; raise UsageError, ArchiveError."""
    reader = click.get_current_context().with_resource(_reading(uri))
    name = _only(source, reader.physical_sources(), f"archive {reader.store}")
    return ArchivedPlace(reader, reader.logs(name))


@contextmanager
def _reading(uri: str) -> Iterator[ArchiveReader]:
    """Yield a reader of an archive; raise ArchiveError."""
    with (
        TemporaryDirectory(prefix="databus-archive-") as folder,
        closing(ArchiveReader(uri, Path(folder), _CACHE_BYTES)) as reader,
    ):
        yield reader


def _only(source: str | None, names: list[str], place: str) -> str:
    """Return the one name that is meant; raise UsageError."""
    if not names:
        raise click.UsageError(f"{place} has no physical source with a log")
    chosen = [source] if source is not None else names
    if len(chosen) != 1 or chosen[0] not in names:
        known = ", ".join(names)
        raise click.UsageError(f"choose a physical source that has a log by --source: {known}")
    return chosen[0]


def _row(segment: Segment) -> tuple[str, ...]:
    header, end = segment.header, segment.end
    times = _time(header.first_timestamp_ns), _time(end.timestamp_ns)
    scns = str(header.first_scn), str(end.scn)
    return segment.path.name, *scns, *(time or "-" for time in times), str(segment.size_bytes)


def _gtids(segments: Iterable[Segment]) -> GtidRanges:
    """Return the GTIDs that the indexes of segments have."""
    ranges = (one.gtids if one.index is None else one.index.gtids.ranges for one in segments)
    return reduce(merged, (one for one in ranges if one), {})


def _lacks_gtids(segment: Segment) -> bool:
    return segment.gtids is None and segment.index is None


def _time(timestamp_ns: int) -> str | None:
    if timestamp_ns <= 0:
        return None
    return datetime.fromtimestamp(timestamp_ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _known(scn: int) -> int | None:
    return None if scn < 0 else scn


def _count(found: Found) -> int:
    return len(found.log) + len(found.before) + len(found.unreadable)
