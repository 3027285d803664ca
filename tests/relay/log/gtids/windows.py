"""Windows whose rows have GTIDs, for the tests of `relay/log/gtids`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from databus.relay.log.layout import FOOTER_BYTES, Footer
from databus.relay.log.segment import read_footer
from databus.schemas.event.control import end_of_period
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.metadata import EventMetadata, Op, encode_metadata, metadata_part
from databus.schemas.event.v2 import encode
from databus.schemas.windows import EncodedWindow
from tests.relay.ring.model import SCHEMA_ID

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def row(scn: int, gtid: str | None, key: int | bytes = 1, payload: bytes = b"row") -> bytes:
    """Return the bytes of a row's event; without a GTID it has metadata all the same."""
    metadata = metadata_part(encode_metadata(EventMetadata(Op.INSERT, gtid, 1, "bin.000001", 4)))
    data = Part(payload, SCHEMA_ID, 1)
    return encode(Event(scn, scn * 1000, 40, 0, key, Opcode.UPSERT, data, metadata))


def window(scn: int, gtid: str | None, rows: int = 1, payload: bytes = b"row") -> EncodedWindow:
    """Return the window of a transaction with a GTID."""
    events = [row(scn, gtid, key, payload) for key in range(rows)]
    eop = encode(end_of_period(scn, scn * 1000))
    return EncodedWindow(scn, b"".join(events) + eop, scn * 1000)


def gtids_at(path: Path) -> tuple[int, int]:
    """Return where the index of GTIDs lies in a sealed segment's file: begin and end."""
    footer = footer_of(path)
    return footer.gtids_at, footer.gtids_at + footer.gtids_bytes


def footer_of(path: Path) -> Footer:
    """Return the footer of a sealed segment's file."""
    with path.open("rb") as file:
        footer = read_footer(file.fileno())
    assert footer is not None
    return footer


def take_index_out(paths: Sequence[Path]) -> None:
    """Leave sealed segments as they were written before there was an index of GTIDs."""
    for path in paths:
        footer, data = footer_of(path), path.read_bytes()
        old = footer._replace(gtids_bytes=0, gtid_list_bytes=0, gtid_list_crc=0)
        assert len(old.encode()) == FOOTER_BYTES
        path.write_bytes(data[: footer.gtids_at] + old.encode())
