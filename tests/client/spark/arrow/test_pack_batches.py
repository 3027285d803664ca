"""Packs of a server as batches of the target; and those that are not what they say."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from databus.client.spark.arrow.event_batches import EventBatches
from databus.client.spark.planning.server_pool import Answer
from databus.client.spark.source.bootstrap_pages import take_answer
from databus.schemas.avro_rows import schema_id
from databus.schemas.errors import SchemaNotFoundError, ServerError
from databus.schemas.event.crc import event_crc
from databus.schemas.stream.packs import Buffers, PackHead, beginning, compress, join_columns
from tests.client.spark.arrow.made_events import make_columns, rows_of, version

SCHEMA = version(1, {"id": "int", "name": "text"})
ROWS = 50
IDS = struct.pack(f"<{ROWS}i", *range(ROWS))
SCNS = struct.pack(f"<{ROWS}q", *range(100, 100 + ROWS))
ENDS = [2 * row for row in range(ROWS + 1)]
NAMES = "".join(f"{row:02}" for row in range(ROWS)).encode()


def offsets(ends: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(ends)}i", *ends)


GOOD: list[Buffers] = [
    (None, None, IDS),
    (None, offsets(ENDS), NAMES),
    (None, None, SCNS),
]


def pack(
    columns: Sequence[Buffers] = GOOD, left_out: Sequence[int] = (), digest: str = ""
) -> bytes:
    data, sizes = join_columns(columns)
    frame = compress(data)
    head = PackHead(
        store="s",
        src_id=SCHEMA.src_id,
        digest=digest or schema_id(SCHEMA.text).hex(),
        after_id=0,
        until_id=ROWS,
        scn=200,
        rows=ROWS,
        sizes=sizes,
        frame_bytes=len(frame),
        crc=event_crc(frame),
    )
    return beginning(head, left_out) + frame


def take(body: bytes, **options: Any) -> EventBatches:
    columns = make_columns([SCHEMA], as_snapshot=True, **options)
    take_answer(Answer("the server", {}, bytearray(body)), columns, list)
    return columns


def test_rows_of_a_pack_are_those_that_are_not_left_out() -> None:
    columns = take(pack(left_out=[0, 7, ROWS - 1]))
    assert columns.rows == ROWS - 3
    found = {row["id"]: row["name"] for row in rows_of(columns.flush())}
    assert found == {row: f"{row:02}" for row in range(ROWS) if row not in (0, 7, ROWS - 1)}
    assert take(pack(left_out=range(ROWS))).flush() == []


def test_no_batch_has_more_rows_than_it_may() -> None:
    batches = take(pack(), batch_rows=20).flush()
    assert [batch.num_rows for batch in batches] == [20, 20, 10]
    assert len(rows_of(batches)) == ROWS


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: pack([GOOD[0], GOOD[2]]),
        lambda: pack([(None, None, IDS[:-4]), *GOOD[1:]]),
        lambda: pack([*GOOD[:2], (None, None, SCNS[:-8])]),
        lambda: pack([(b"\xff", None, IDS), *GOOD[1:]]),
        lambda: pack([GOOD[0], (None, None, NAMES), GOOD[2]]),
        lambda: pack([GOOD[0], (None, offsets(ENDS[:-1]), NAMES), GOOD[2]]),
        lambda: pack([GOOD[0], (None, offsets([*ENDS[:-1], 5000]), NAMES), GOOD[2]]),
        lambda: pack([GOOD[0], (None, offsets([0, 90_000, *ENDS[2:]]), NAMES), GOOD[2]]),
        lambda: pack([GOOD[0], (None, offsets([-4, *ENDS[1:]]), NAMES), GOOD[2]]),
        lambda: pack([GOOD[0], (None, offsets(ENDS) + b"x", NAMES), GOOD[2]]),
        lambda: pack(left_out=[3, 3]),
        lambda: pack(left_out=[ROWS]),
    ],
)
def test_a_pack_that_is_not_what_it_says_is_refused_whole(wrong: Callable[[], bytes]) -> None:
    with pytest.raises(ServerError, match="the server: bad bytes"):
        take(wrong())


def test_a_pack_of_a_version_that_the_server_does_not_list_is_refused() -> None:
    with pytest.raises(SchemaNotFoundError, match=r"the server sends rows .* not listed"):
        take(pack(digest="ab" * 16))


def test_a_pack_where_changes_should_be_is_refused() -> None:
    columns = make_columns([SCHEMA])
    with pytest.raises(ServerError, match="where changes should be"):
        take_answer(Answer("the server", {}, bytearray(pack())), columns, list)
