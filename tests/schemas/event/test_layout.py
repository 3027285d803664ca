"""The one layout of events: golden offsets, and what is generated from it."""

from __future__ import annotations

import re
import struct

import pytest

from databus.schemas.event import layout
from databus.schemas.event.event import CRC32_BYTES, MD5_BYTES
from databus.schemas.event.layout import PART, V1, V2, Field, PartHeader, V1Header, V2Header
from tools.event_layout import layout_include
from tools.generate_references import INCLUDE
from tools.repository import MAPPED, ROOT

# Offset and size of every field, as they are in every file and on every wire: never to be changed.
GOLDEN_V1 = {
    "version": (0, 1),
    "header_crc": (1, 4),
    "length": (5, 4),
    "attributes": (9, 2),
    "scn": (11, 8),
    "physical_partition_id": (19, 2),
    "partition_id": (21, 2),
    "timestamp_ns": (23, 8),
    "src_id": (31, 2),
    "schema_id": (33, 16),
    "value_crc": (49, 4),
    "long_key": (53, 8),
    "key_length": (53, 4),
}
GOLDEN_V2 = {
    "version": (0, 1),
    "magic": (1, 4),
    "header_length": (5, 4),
    "header_crc": (9, 4),
    "body_crc": (13, 4),
    "length": (17, 4),
    "attributes": (21, 2),
    "timestamp_ns": (23, 8),
    "src_id": (31, 4),
    "partition_id": (35, 2),
    "scn": (37, 8),
    "long_key": (45, 8),
    "key_length": (45, 4),
}
GOLDEN_PART = {"length": (0, 4), "attributes": (4, 2), "md5": (6, 16), "crc32": (6, 4)}

# All compiled code but the include itself.
COMPILED = sorted(
    path
    for name in MAPPED
    for suffix in ("pyx", "pxi")
    for path in (ROOT / name).rglob(f"*.{suffix}")
    if path != INCLUDE
)
NAMES = re.findall(r"^    (\w+) = ", layout_include(), re.MULTILINE)


def places(header: V1Header | V2Header | PartHeader) -> dict[str, tuple[int, int]]:
    """Return offset and size of each field."""
    named = zip(header._fields, header, strict=True)
    return {name: (field.offset, field.end - field.offset) for name, field in named}


def test_version_1_is_laid_out_as_ever() -> None:
    assert places(V1) == GOLDEN_V1
    assert (layout.V1_VERSION, layout.V1_COVERED_AT) == (0, 5)
    assert (layout.V1_SMALLEST_BYTES, layout.V1_LONG_KEY_HEADER_BYTES) == (57, 61)


def test_version_2_is_laid_out_as_ever() -> None:
    assert places(V2) == GOLDEN_V2
    assert (layout.V2_VERSION, layout.V2_MAGIC, layout.V2_COVERED_AT) == (2, 0xCAFEDEED, 13)
    assert (layout.V2_SMALLEST_BYTES, layout.V2_LONG_KEY_HEADER_BYTES) == (49, 53)
    assert bytes.fromhex("02 cafedeed 00000035") == layout.V2_LONG_KEY_BEGIN


def test_parts_are_laid_out_as_ever() -> None:
    assert places(PART) == GOLDEN_PART
    assert (layout.MD5_PART_BYTES, layout.CRC32_PART_BYTES) == (22, 10)
    assert PART.md5.end - PART.md5.offset == MD5_BYTES
    assert PART.crc32.end - PART.crc32.offset == CRC32_BYTES


@pytest.mark.parametrize("header", [V1, V2], ids=["version 1", "version 2"])
def test_fields_follow_one_another_without_a_gap(header: V1Header | V2Header) -> None:
    *fixed, long_key, key_length = header
    at = 0
    for field in fixed:
        assert field.offset == at
        at = field.end
    assert long_key.offset == key_length.offset == at


def test_a_struct_skips_what_lies_between_its_fields() -> None:
    found = layout.struct_of(V2.version, V2.magic, V2.length, V2.src_id, V2.scn)
    assert found.format == ">BI12xI10xi2xq"
    assert layout.struct_of(V2.src_id, V2.scn, begin=V2.timestamp_ns.offset).format == ">8xi2xq"


def test_fields_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="the field at 1 begins before 21"):
        layout.struct_of(V2.length, V2.magic)


def test_a_field_moves_with_what_it_is_in() -> None:
    assert PART.attributes.moved(53) == Field(57, "H", PART.attributes.meaning)
    assert struct.calcsize(f">{PART.crc32.code}") == CRC32_BYTES


def test_the_compiled_modules_include_is_current() -> None:
    assert INCLUDE.read_text(encoding="utf-8") == layout_include(), "run make docs"


def faults(text: str) -> list[str]:
    """Return what of the layout compiled code has from elsewhere than the include."""
    name = rf"\b(?:{'|'.join(NAMES)})\b"
    own = re.findall(rf"^\s+(?:cdef .*)?({name}) = -?\d", text, re.MULTILINE)
    own += re.findall("cafedeed", text, re.IGNORECASE)
    # `row_events.pxi` includes it itself.
    includes = r'^include "[./]*(?:schemas/)?(?:(?:event/)layout|(?:stream/)?row_events)\.pxi"$'
    imports = r"^from databus\.schemas\.event\.layout import "
    if not re.search(f"{includes}|{imports}", text, re.MULTILINE):
        own += re.findall(name, text)
    return own


def test_compiled_modules_take_the_layout_from_the_include_alone() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in COMPILED}
    assert {str(path): own for path, text in texts.items() if (own := faults(text))} == {}
    ring = next(text for path, text in texts.items() if path.match("relay/ring/_core.pyx"))
    # What it would find: a module without the include, with a number or a magic of its own.
    assert faults(re.sub('^include ".*layout.*$', "", ring, flags=re.MULTILINE)) != []
    assert faults(ring + "\ncdef enum:\n    SCN_AT = 37\n") == ["SCN_AT"]
    assert faults(ring + "\ncdef long magic = 0xCAFEDEED\n") == ["CAFEDEED"]
