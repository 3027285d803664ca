"""A row's metadata, read in compiled code as in Python."""

from __future__ import annotations

from hypothesis import given, strategies as st

from databus.relay.serving.ptubes.rows._row_columns import plain_metadata
from databus.relay.serving.ptubes.rows.row_metadata import row_metadata
from databus.schemas.event.event import Event, Opcode
from databus.schemas.event.metadata import (
    EventMetadata,
    Notes,
    Op,
    decode_metadata,
    encode_metadata,
    metadata_part,
)

TEXTS = st.none() | st.text(st.characters(codec="utf-8"), max_size=40)
NUMBERS = st.integers(0, (1 << 62) - 1)
METADATA = st.builds(
    EventMetadata,
    st.sampled_from([op for op in Op if op is not Op.TRUNCATE]),
    TEXTS,
    NUMBERS,
    st.text(st.characters(codec="utf-8"), max_size=20),
    *[NUMBERS] * 3,
    st.none() | st.binary(max_size=300),
    TEXTS,
    st.sampled_from([None, None, Notes((1,)), Notes(raw={"day": "0000-00-00"})]),
)


def read(data: bytes) -> EventMetadata | None:
    part = metadata_part(data)
    return row_metadata(Event(1, 1, 1, 0, 1, Opcode.UPSERT, None, part))


def seen(metadata: EventMetadata | None) -> EventMetadata:
    """Return what is used of it."""
    assert metadata is not None
    return metadata._replace(server_id=0, file="", offset=0, epoch=0)


@given(METADATA)
def test_metadata_is_read_alike(metadata: EventMetadata) -> None:
    data = encode_metadata(metadata)
    assert seen(read(data)) == seen(decode_metadata(data)) == seen(metadata)
    assert (plain_metadata(data) is None) == (metadata.notes is not None)


@given(METADATA, st.integers(0, 400), st.booleans())
def test_damaged_metadata_is_pythons_to_refuse(
    metadata: EventMetadata, end: int, goes_on: bool
) -> None:
    data = encode_metadata(metadata)
    damaged = data + b"\0" if goes_on else data[: min(end, len(data) - 1)]
    assert plain_metadata(damaged) is None
