"""Plan a batch over the archive of a relay log: a range for each segment.

Without relays the archive itself is listed. With relays, one of them says which segments it has
archived, and sends what comes after those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from databus.client.spark.arrow.row_types import WriterSchema
from databus.client.spark.options import SourceOptions
from databus.client.spark.planning.ranges import ArchiveRange
from databus.client.spark.planning.server_pool import ServerPool
from databus.relay.log.archive.manifest import Manifest
from databus.relay.log.archive.reading import ArchivedLog, ArchiveReader
from databus.schemas.errors import ReadAgainError, ServerError, SettingsError
from databus.schemas.protocol import Parameter
from databus.schemas.scn import MAX_SCN


class FoundLog(NamedTuple):
    """The log in an archive that has the sources, and its schemas by source."""

    log: ArchivedLog
    schemas: Mapping[str, list[WriterSchema]]


def find_log(options: SourceOptions) -> FoundLog:
    """Return the newest log of the archive that has the sources, and the windows if it can.

    Raises SettingsError if no log has the sources; ArchiveError.
    """
    assert options.archive is not None
    with (
        TemporaryDirectory(prefix="databus-archive-") as folder,
        closing(ArchiveReader(options.archive, Path(folder), 0)) as reader,
    ):
        found = [
            FoundLog(log, schemas)
            for name in reader.physical_sources()
            for log in reader.logs(name)
            if (schemas := read_schemas(reader, log.folder, options.sources)) is not None
        ]
    if not found:
        raise SettingsError(
            f"option archive: no log in it has the sources {', '.join(options.sources)}"
        )
    after, until = options.after or 0, MAX_SCN if options.until is None else options.until
    found.sort(key=lambda one: one.log.sealed_ns)
    until = min(until, found[-1].log.log[-1].end.scn)
    return next((one for one in reversed(found) if one.log.covers(after, until)), found[-1])


def read_schemas(
    reader: ArchiveReader, log_folder: str, sources: Sequence[str]
) -> dict[str, list[WriterSchema]] | None:
    """Return the schemas of the sources in a log, all versions; None if it lacks a source."""
    found: dict[str, list[WriterSchema]] = {name: [] for name in sources}
    for one in reader.schemas(log_folder):
        if one.source in found:
            found[one.source].append(WriterSchema(*one))
    return found if all(found.values()) else None


def archived_ranges(options: SourceOptions, after: int) -> list[ArchiveRange]:
    """Return the ranges of a batch that has nothing but an archive.

    Raises SettingsError if the archive does not have all its windows; ArchiveError.
    """
    log = find_log(options).log
    until = log.log[-1].end.scn if options.until is None else options.until
    if until < after:
        raise ReadAgainError(
            f"option archive: scn {after} is in the future, the newest archived is {until}"
        )
    if not log.covers(after, until):
        raise SettingsError(
            f"option archive: its newest log with these sources, {log}, does not have all windows "
            f"after scn {after} up to {until}"
        )
    return ranges_of(log.source, options.sources, log.between(after, until), after, until)


def archived_by_relay(
    relays: ServerPool, physical: str, sources: Sequence[str], after: int, until: int
) -> list[ArchiveRange]:
    """Return the ranges of the windows that a relay has archived, from `after` on without a gap."""
    parameters = {
        Parameter.SOURCES: ",".join(sources),
        Parameter.FROM: str(after),
        Parameter.TO: str(until),
    }
    answer = relays.get("/segments", parameters, after)
    try:
        texts = [str(one["manifest"]) for one in answer.json()["segments"]]
    except (KeyError, TypeError) as error:
        text = f"the answer to /segments is malformed: {error!r}"
        raise ServerError(answer.server, text) from error
    manifests = [Manifest.from_json(answer.server, text) for text in texts]
    return ranges_of(physical, sources, manifests, after, until)


def ranges_of(
    physical: str, sources: Sequence[str], manifests: Sequence[Manifest], after: int, until: int
) -> list[ArchiveRange]:
    """Return a range for each segment of a log; none if the first one begins behind `after`.

    Raises SettingsError if a source was not captured all the time.
    """
    found: list[ArchiveRange] = []
    begin = after
    for one in manifests:
        if one.complete_after > begin:
            break  # what lies before it is not archived
        captured = dict(one.sources)
        for name in sources:
            if captured.get(name, MAX_SCN) > after:
                raise SettingsError(
                    f"source {name} was not captured all the time from scn {after} to "
                    f"{one.end.scn}: choose option after at or behind its first SCN in "
                    f"{one.path}, or read the table with mode=table"
                )
        end = min(one.end.scn, until)
        found.append(ArchiveRange(physical, tuple(sources), begin, end, one.to_json()))
        begin = end
    return found
