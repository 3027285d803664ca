"""Read windows of an archived segment as Arrow batches; runs in a task. No relay is asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from databus.client.spark.arrow.event_batches import EventBatches, UnknownSchemaError
from databus.client.spark.options import SourceOptions
from databus.client.spark.planning.archive_plan import read_schemas
from databus.client.spark.planning.ranges import ArchiveRange
from databus.client.spark.source.range_reader import layout_of
from databus.relay.log.archive.manifest import ArchiveError, Manifest
from databus.relay.log.archive.reading import ArchiveReader, read_selected
from databus.schemas.errors import ProtocolError


def read_archive(
    one: ArchiveRange, options: SourceOptions, target: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield a range's rows as batches with exactly the target's schema.

    What the range needs of the segment is copied into a temporary file, and its CRCs are checked.
    Raises ArchiveError; ScnNotFoundError if it does not have these windows.
    """
    assert options.archive is not None
    manifest = Manifest.from_json("a range's manifest", one.manifest)
    with (
        TemporaryDirectory(prefix="databus-archive-") as folder,
        closing(ArchiveReader(options.archive, Path(folder), 0)) as reader,
    ):
        schemas = read_schemas(reader, manifest.folder, one.sources)
        if schemas is None:
            raise ArchiveError(f"archive: {manifest.folder} lacks schemas of {one.sources}")
        ids = {name: versions[0].src_id for name, versions in schemas.items()}
        columns = EventBatches(
            target,
            [version for name in one.sources for version in schemas[name]],
            physical_source=one.physical_source,
            layout=layout_of(target),
            on_new_column=options.on_new_column,
            as_text=options.columns_as_text,
            batch_rows=options.batch_rows,
        )
        filters = {ids[name]: wanted for name, wanted in options.filters.items() if name in ids}
        segments, scns = reader.segments([manifest]), (one.from_scn, one.to_scn)
        for events in read_selected(segments, scns, ids.values(), filters):
            _take(columns, events, manifest)
            if columns.rows >= options.batch_rows:
                yield from columns.flush()
        yield from columns.flush()


def _take(columns: EventBatches, events: bytes, manifest: Manifest) -> None:
    try:
        taken = columns.take(memoryview(events))
    except (ProtocolError, UnknownSchemaError) as error:
        raise ArchiveError(f"archive: {manifest.segment_path}: {error}") from error
    if taken != len(events):
        raise ArchiveError(f"archive: {manifest.segment_path} ends within an event")
