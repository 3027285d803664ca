"""The byte layouts of protocol.md, field by field and by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import ProtocolError
from databus.schemas.event import v1 as event_v1, v2 as event_v2
from databus.schemas.event.control import checkpoint_event, ddl_event, dml_event, end_of_period
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.metadata import (
    METADATA_CRC32,
    EventMetadata,
    Op,
    encode_metadata,
    metadata_part,
)
from tests.schemas.event.independent import bitwise_event_crc

MD5 = bytes.fromhex("00112233445566778899aabbccddeeff")
ROW = Event(
    scn=0x0000000300000FA0,
    timestamp_ns=0x17C0FFEE12345678,
    src_id=40,
    partition_id=7,
    key=-2,
    opcode=Opcode.UPSERT,
    payload=Part(b"value", MD5, 3),
    metadata=None,
)
SCN_HEX = "0000000300000fa0"
TIME_HEX = "17c0ffee12345678"
MINUS_TWO_HEX = "fffffffffffffffe"


def crc_hex(hex_text: str) -> str:
    return f"{bitwise_event_crc(bytes.fromhex(hex_text)):08x}"


def v1_hex(checked: str, key_field: str, body: str) -> str:
    """Put a version 1 event together; `checked` is offset 5 up to the value CRC."""
    header = checked + crc_hex(body) + key_field
    return "00" + crc_hex(header) + header + body


def v2_hex(header_length: str, fields: str, body: str) -> str:
    """Put a version 2 event together; `fields` is offset 17 to the end of the header."""
    checked = crc_hex(body) + fields
    return "02" + "cafedeed" + header_length + crc_hex(checked) + checked + body


def check_both_ways(module: object, event: Event, hex_text: str) -> None:
    data = bytes.fromhex(hex_text)
    assert module.encode(event).hex() == hex_text  # type: ignore[attr-defined]
    assert module.decode(data) == (event, len(data))  # type: ignore[attr-defined]


def test_the_independent_crc_gives_the_published_check_value() -> None:
    assert bitwise_event_crc(b"123456789") == 0x2DFD2D88


def test_version_1_with_a_long_key() -> None:
    value = b"value".hex()
    expected = v1_hex(
        "00000042"  # 61 + 5 bytes
        "0001"  # upsert
        + SCN_HEX
        + "0007"  # physical partition
        + "0007"  # logical partition
        + TIME_HEX
        + "0028"  # src_id 40
        + MD5.hex(),
        MINUS_TWO_HEX,
        value,
    )
    v1 = ROW._replace(payload=Part(b"value", MD5))
    check_both_ways(event_v1, v1, expected)


def test_version_1_with_a_byte_key_covers_the_key_with_the_value_crc() -> None:
    key, value = b"k,1".hex(), b"value".hex()
    length = 57 + 3 + 5
    checked = f"{length:08x}" + "010e" + SCN_HEX + "00070007" + TIME_HEX + "0028" + MD5.hex()
    expected = v1_hex(checked, "00000003", key + value)
    v1 = ROW._replace(
        key=b"k,1",
        opcode=Opcode.DELETE,
        payload=Part(b"value", MD5),
        is_replicated=True,
        is_traced=True,
    )
    check_both_ways(event_v1, v1, expected)


def test_version_1_end_of_period() -> None:
    expected = v1_hex(
        "0000003d" + "0000" + SCN_HEX + "00000000" + TIME_HEX + "fffe" + "00" * 16,
        "00" * 8,
        "",
    )
    check_both_ways(event_v1, end_of_period(ROW.scn, ROW.timestamp_ns), expected)


def test_version_1_checkpoint() -> None:
    checkpoint = Checkpoint.at(5)
    text = checkpoint.to_json().encode()
    expected = v1_hex(
        f"{61 + len(text):08x}" + "0000" + "00" * 8 + "00000000" + "00" * 8 + "fffd" + "00" * 16,
        "00" * 8,
        text.hex(),
    )
    check_both_ways(event_v1, checkpoint_event(checkpoint), expected)


def test_version_2_with_a_long_key() -> None:
    body = "00000005" + "000c" + MD5.hex() + b"value".hex()  # length, version 3 << 2, digest
    fields = (
        f"{53 + 27:08x}"
        "0085"  # upsert, long key, payload
        + TIME_HEX
        + "00000028"
        + "0007"
        + SCN_HEX
        + MINUS_TWO_HEX
    )
    check_both_ways(event_v2, ROW, v2_hex("00000035", fields, body))


def test_version_2_with_a_byte_key() -> None:
    body = "00000005" + "000c" + MD5.hex() + b"value".hex()
    fields = (
        f"{49 + 3 + 27:08x}"
        "00ba"  # delete, byte key, replicated, trace, payload
        + TIME_HEX
        + "00000028"
        + "0007"
        + SCN_HEX
        + "00000003"
        + b"k,1".hex()
    )
    event = ROW._replace(key=b"k,1", opcode=Opcode.DELETE, is_replicated=True, is_traced=True)
    check_both_ways(event_v2, event, v2_hex("00000034", fields, body))


def test_version_2_with_metadata_before_the_payload() -> None:
    metadata = "00000004" + "0005" + "deadbeef" + b"meta".hex()  # version 1 << 2 | CRC32 digest
    body = metadata + "00000005" + "000c" + MD5.hex() + b"value".hex()
    fields = (
        f"{53 + 14 + 27:08x}"
        "00c5"  # upsert, long key, metadata, payload
        + TIME_HEX
        + "00000028"
        + "0007"
        + SCN_HEX
        + MINUS_TWO_HEX
    )
    event = ROW._replace(metadata=Part(b"meta", bytes.fromhex("deadbeef"), 1))
    check_both_ways(event_v2, event, v2_hex("00000035", fields, body))


def test_version_2_end_of_period() -> None:
    fields = "00000035" + "0004" + TIME_HEX + "fffffffe" + "0007" + SCN_HEX + "00" * 8
    event = end_of_period(ROW.scn, ROW.timestamp_ns, partition_id=7)
    check_both_ways(event_v2, event, v2_hex("00000035", fields, ""))


def test_version_2_checkpoint() -> None:
    text = b'{"consumption_mode":"ONLINE_CONSUMPTION","windowScn":5,"windowOffset":-1,"prevScn":5}'
    body = f"{len(text):08x}" + "0000" + "00" * 16 + text.hex()
    fields = (
        f"{53 + 22 + len(text):08x}" + "0084" + "00" * 8 + "fffffffd" + "0000" + "00" * 8 + "00" * 8
    )
    check_both_ways(event_v2, checkpoint_event(Checkpoint.at(5)), v2_hex("00000035", fields, body))


def test_version_2_of_an_emptied_table() -> None:
    metadata = EventMetadata(Op.TRUNCATE, row_index=2)
    told = "00" + "00" + "00" + "00" + "00" + "08" + "04" + "00" + "00" + "00"
    body = f"{10:08x}" + "0009" + f"{METADATA_CRC32:08x}" + told
    fields = (
        f"{49 + len(body) // 2:08x}"
        "004a"  # delete, byte key, metadata
        + TIME_HEX
        + "00000028"
        + "0007"
        + SCN_HEX
        + "00000000"  # a key of no bytes
    )
    event = ROW._replace(
        key=b"",
        opcode=Opcode.DELETE,
        payload=None,
        metadata=metadata_part(encode_metadata(metadata)),
    )
    check_both_ways(event_v2, event, v2_hex("00000031", fields, body))


@pytest.mark.parametrize(("make", "src_id"), [(ddl_event, "c4"), (dml_event, "c3")])
def test_version_2_of_a_statement(make: Callable[..., Event], src_id: str) -> None:
    text = b'{"sources":["shop.a"],"database":"shop","statement":"DROP TABLE b"}'
    body = f"{len(text):08x}" + "0000" + "00" * 16 + text.hex()
    fields = (
        f"{53 + 22 + len(text):08x}"
        "0084"  # control, long key, payload
        + TIME_HEX
        + "ffffff"
        + src_id  # -60 or -61
        + "0007"
        + SCN_HEX
        + "00" * 8
    )
    event = make(ROW.scn, ROW.timestamp_ns, 7, ["shop.a"], "shop", "DROP TABLE b")
    check_both_ways(event_v2, event, v2_hex("00000035", fields, body))


def test_an_unstamped_event_has_no_scn_no_time_and_no_header_crc() -> None:
    whole = event_v2.encode(ROW)
    zeros = bytearray(whole)
    for at, size in ((9, 4), (23, 8), (37, 8)):
        zeros[at : at + size] = bytes(size)
    assert event_v2.unstamped(whole) == bytes(zeros)


def test_the_partition_id_stands_in_both_fields_of_version_1() -> None:
    data = event_v2.to_v1(event_v2.encode(ROW))
    assert data[19:21] == data[21:23] == b"\x00\x07"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("scn", 1 << 63),
        ("partition_id", 1 << 15),
        ("src_id", 1 << 31),
        ("key", 1 << 63),
        ("timestamp_ns", -(1 << 63) - 1),
    ],
)
def test_a_field_out_of_range_is_refused_by_both_versions(field: str, value: int) -> None:
    event = ROW._replace(**{field: value})  # type: ignore[arg-type]
    for module in (event_v1, event_v2):
        with pytest.raises(ProtocolError, match="does not fit version"):
            module.encode(event)


def test_a_digest_of_another_length_is_refused() -> None:
    with pytest.raises(ProtocolError, match="16 or 4 bytes, not 5"):
        event_v2.encode(ROW._replace(payload=Part(b"", b"12345")))
