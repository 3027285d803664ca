"""An event's row, metadata and kind of change."""

from __future__ import annotations

from unittest.mock import PropertyMock, patch

import pytest

from databus.client.dispatcher.data_window import DataWindow
from databus.client.events.data_event import DataEvent
from databus.schemas.event.event import Part
from databus.schemas.event.metadata import METADATA_DIGESTS, Notes, Op
from tests.client.shop import change, order, read


def test_an_event_shows_its_row_its_metadata_and_the_row_before() -> None:
    old, new = {"id": 1, "item": "tea"}, {"id": 1, "item": "milk"}
    item = read(7, change(7, new, op=Op.UPDATE, before=old), change(7, new, op=Op.DELETE))
    updated, deleted = DataWindow(item).events
    assert (updated.op, updated.row, updated.before) == (Op.UPDATE, new, old)
    assert (updated.source, updated.wire_key, updated.scn, updated.index) == (
        "shop.orders",
        1,
        7,
        0,
    )
    assert (updated.gtid, updated.timestamp_ns, updated.schema_version) == ("0-1-7", 1007, 1)
    assert (deleted.op, deleted.is_delete, deleted.before, deleted.index) == (
        Op.DELETE,
        True,
        None,
        1,
    )


def test_an_event_without_metadata_is_an_update_or_a_delete() -> None:
    bare = [
        e._replace(metadata=None)
        for e in (order(7), change(7, {"id": 1, "item": "a"}, op=Op.DELETE))
    ]
    updated, deleted = DataWindow(read(7, *bare)).events
    assert (updated.op, deleted.op) == (Op.UPDATE, Op.DELETE)
    assert updated.gtid is None
    assert updated.before is None


def test_metadata_of_version_1_is_read() -> None:
    told = order(7).metadata
    assert told is not None
    # Without notes version 2 has one byte more, the last one.
    older = Part(told.data[:-1], min(METADATA_DIGESTS - {told.digest}), 1)
    for event in DataWindow(read(7, *[order(7)._replace(metadata=older)] * 3)).events:
        assert (event.op, event.gtid, event.absent, event.raw) == (Op.INSERT, "0-1-7", (), {})
        assert event.row == {"id": 1, "item": "tea"}


def test_without_metadata_an_event_about_a_whole_table_is_known_by_its_key() -> None:
    emptied = change(7, {"id": 1, "item": "a"}, op=Op.DELETE)._replace(
        key=b"", payload=None, metadata=None
    )
    (event,) = DataWindow(read(7, emptied)).events
    assert (event.op, event.is_truncate, event.row) == (Op.TRUNCATE, True, {})


@pytest.mark.parametrize("position", [-9, -1, 99])
def test_a_damaged_note_names_no_other_column(position: int) -> None:
    (event,) = DataWindow(read(7, order(7))).events
    damaged = PropertyMock(return_value=Notes(absent=(position,)))
    with patch.object(DataEvent, "_notes", damaged):
        assert event.absent == ()
