"""Apply the events of one source to a target, as `apply_changes` does with a DataFrame."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from databus.client.arrow.arrow_types import CHANGE_COLUMN
from databus.client.spark.arrow.row_types import arrow_schema, changes_schema, row_schema
from databus.client.spark.arrow.unpacked_events import unpacked
from databus.client.spark.consuming.apply import forget_as_of, skipped
from databus.client.spark.consuming.schema_book import SchemaBook
from databus.client.spark.targets.changes import check_names
from databus.client.spark.targets.following import SchemaFollower, check_reload, lead_idle
from databus.client.spark.targets.target import Applied, Target, check_same_source
from databus.schemas.columns.avro_columns import WriterSchema
from databus.schemas.table_change import Versions


def apply_events(
    events: pa.Table,
    batch_id: int,
    target: Target,
    book: SchemaBook,
    *,
    app_id: str,
    as_text: Sequence[str] = (),
) -> Applied:
    """Apply a batch of one source, in columns of layout `events`, exactly once.

    Raises ReloadNeededError if the table's rows must be read again; SettingsError for a
    source without a key, for columns whose names the target has itself, and for a target
    with the rows of another source; also the errors of `unpacked` and of `Target.apply`.
    """
    commit_log = target.commit_log()
    is_new = commit_log.applied(app_id) is None
    if (done := skipped(commit_log, app_id, batch_id, events)) is not None:
        return done
    source = str(_told(events, "source")[0].as_py())
    check_same_source(target, source)
    used = {n for n in pc.unique(_told(events, "schema_version")).to_pylist() if n is not None}
    versions = book.versions(source, used)
    rows = unpacked(events, versions, as_text)
    check_names((n for n in rows.column_names if n != CHANGE_COLUMN), target.mode, source)
    texts = {one.version: one.text for one in versions}
    followed, keys = SchemaFollower(source, texts, rows).lead(target, None)
    changes = target.changes_of(followed, keys, source)
    forget_as_of(target, followed, is_new=is_new)
    return target.apply(app_id, batch_id, changes)


def look_at(
    target: Target,
    source: str,
    versions: Sequence[WriterSchema],
    physical: str,
    scn: int,
    as_text: Sequence[str] = (),
) -> None:
    """Take a table to the columns of its newest version, whether or not rows follow.

    All changes up to `scn` were applied to it. Raises ReloadNeededError if its rows must be read
    again, and errors of the target.
    """
    texts = [one.text for one in versions]
    check_reload(target, source, texts, {physical})
    text = Versions(texts).at(scn)
    known = [one for one in versions if one.text == text]
    if known:
        kind = changes_schema({source: row_schema(known, as_text)}, "columns")
        lead_idle(target, source, texts, arrow_schema(kind).empty_table(), physical, scn)


def newest_scns(events: pa.Table) -> dict[str, int]:
    """Return by physical source the newest SCN that rows of a batch are of, or as of."""
    if not events.num_rows:
        return {}
    told = pa.table(
        {
            "name": _told(events, "physical_source"),
            "scn": pc.max_element_wise(_told(events, "scn"), _told(events, "as_of")),
        }
    )
    found = told.group_by("name").aggregate([("scn", "max")])
    return dict(zip(found["name"].to_pylist(), found["scn_max"].to_pylist(), strict=True))


def by_source(events: pa.Table) -> dict[str, pa.Table]:
    """Return a batch's rows by source, in alphabetical order."""
    sources = _told(events, "source")
    return {
        source: events.filter(pc.equal(sources, source))
        for source in sorted(pc.unique(sources).to_pylist())
    }


def _told(events: pa.Table, name: str) -> pa.ChunkedArray:
    return pc.struct_field(events[CHANGE_COLUMN], name)
