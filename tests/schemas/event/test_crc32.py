"""The CRC of events, compiled and in Python, and zlib's, which the binlog has.

The numbers are compared with the polynomial's definition, for every length, alignment and
way of summing.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given, strategies as st

from databus.schemas.event._crc import checksum, event_crc as compiled
from databus.schemas.event.crc import CHECK_VALUE, event_crc, event_crc_in_python
from tests.schemas.event.independent import bitwise_event_crc

Crc = Callable[[bytes], int]

BYTES = random.Random(1).randbytes(4096)
FIRST_SUMS = (0, 1, 0xFFFFFFFF, 0x12345678)
LENGTHS = [*range(301), 1000, 1023, 1024, 4000]
WAYS: dict[str, Crc] = {
    "compiled": compiled,
    "python": event_crc_in_python,
    "by table": lambda data: checksum(data, by_table=True),
    "by folding": checksum,
    "the definition": bitwise_event_crc,
}

ROOT = Path(__file__).parents[3]
PRODUCT = (
    "schemas",
    "conf",
    "registry",
    "relay",
    "client",
    "bootstrap",
    "databus/daemon",
    "databus/groups",
)
# Who may use zlib's CRC-32, and for what: none of it is an event's.
ZLIBS = {
    "bootstrap/store/source_table.py": "rows of the store",
    "databus/groups/kept_checkpoint.py": "checkpoints",
    "client/dispatcher/schema_changes.py": "digests of schemas",
    "client/subscription.py": "digests of schemas",
    "registry/seal.py": "rows of the registry at rest",
    "client/sinks/contract.py": "ids of changes for a target",
    "client/sinks/serving/positions.py": "the record of positions",
    "registry/sqlite_store.py": "rows of the registry",
    "relay/capture/epoch_table.py": "the file of epochs",
    "relay/capture/max_scn.py": "MaxSCN",
    "relay/capture/standby/definitions.py": "tags of definitions",
    "relay/captured_spans.py": "the file of first SCNs",
    "relay/log/archive/cache.py": "compressed frames, and indexes of segments",
    "relay/log/gtids/gtid_index.py": "indexes of segments",
    "relay/log/layout.py": "headers, indexes and footers of segments",
    "relay/log/segment.py": "parts of a segment",
    "relay/log/verify.py": "parts of a segment",
    "relay/log/writer.py": "compressed frames",
    "relay/ring/layout.py": "the ring's header page",
    "relay/serving/ptubes/places.py": "a number for a server, made of its name",
    "relay/sources/mysql/binlog/_decoder.pyx": "checksums of the binlog",
    "relay/sources/mysql/binlog/_event_skipper.pyx": "checksums of the binlog",
    "relay/sources/mysql/binlog/compressed.py": "compressed columns",
    "relay/sources/mysql/binlog/events.py": "checksums of the binlog",
    "relay/sources/mysql/replication/assembler.py": "what a message names",
    "relay/sources/mysql/replication/log_identity.py": "checksums of the binlog",
    "relay/sources/mysql/rows/values.py": "compressed columns",
    "relay/sources/mysql/server/replica.py": "the replica's number",
    "relay/sources/mysql/tables/history.py": "lines of the history",
    "schemas/event/_crc.pyx": "these tests",
    "schemas/event/crc.py": "the one place that makes an event's CRC of zlib's",
    "schemas/event/crc32.pxi": "the one place of compiled code",
    "schemas/event/metadata.py": "digests of schemas",
    "schemas/filters.py": "partitions of keys",
    "schemas/partitions/key_text.pxi": "partitions of keys, in compiled code",
}


@pytest.mark.parametrize("way", WAYS)
def test_each_way_gives_the_check_value(way: str) -> None:
    assert WAYS[way](b"123456789") == CHECK_VALUE == 0x2DFD2D88
    assert WAYS[way](b"") == 0


@pytest.mark.parametrize("way", WAYS)
def test_each_way_gives_the_formulas_number_for_every_length(way: str) -> None:
    for length in range(301):
        data = BYTES[length : 2 * length]
        assert WAYS[way](data) == crc32(data, 0xFFFFFFFF) ^ 0xFFFFFFFF


@pytest.mark.parametrize("by_table", [False, True])
@pytest.mark.parametrize("length", LENGTHS)
def test_compiled_sums_are_right_wherever_the_bytes_lie(length: int, by_table: bool) -> None:
    chosen = random.Random(length)
    for at in (0, 1, 7, 15, chosen.randrange(64)):
        piece = memoryview(BYTES)[at : at + length]
        for begin in (*FIRST_SUMS, chosen.getrandbits(32)):
            assert checksum(piece, begin, by_table, is_zlibs=True) == crc32(piece, begin)
            assert checksum(piece, begin, by_table) == event_crc_in_python(piece, begin)


@pytest.mark.parametrize("crc", [compiled, event_crc_in_python, checksum])
@given(data=st.binary(max_size=400), cut=st.integers(0, 400))
def test_a_crc_that_is_continued_is_that_of_the_whole(
    crc: Callable[[bytes, int], int], data: bytes, cut: int
) -> None:
    assert crc(data[cut:], crc(data[:cut], 0)) == bitwise_event_crc(data)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_bytes_is_taken(kind: type[bytes]) -> None:
    assert event_crc(kind(BYTES)) == compiled(kind(BYTES)) == event_crc_in_python(kind(BYTES))


def test_what_is_no_bytes_is_refused() -> None:
    with pytest.raises(TypeError):
        compiled("text")  # type: ignore[arg-type]
    with pytest.raises(BufferError):
        compiled(memoryview(BYTES)[::2])


def test_zlibs_crc_is_used_for_nothing_of_events() -> None:
    users = {
        path.relative_to(ROOT).as_posix()
        for folder in PRODUCT
        for kind in ("*.py", "*.pyx", "*.pxi")
        for path in (ROOT / folder).rglob(kind)
        if re.search(r"import.*\bcrc32\b|\bimport zlib\b|\bzlib_crc32\(", path.read_text())
    }
    assert users == set(ZLIBS)
