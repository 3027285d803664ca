"""The rows of each table are counted behind the writer: exactly, or it is said what is missing."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from databus.relay.admin.page_parts.table_counts import Found, compiled_tally, tally_in_python
from databus.schemas.errors import ProtocolError
from databus.schemas.event.control import end_of_period
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.v2 import encode
from tests.promises.running import wait_until
from tests.relay.fakes import ORDERS, ServedRelay, insert, transaction

ROWS = st.lists(st.tuples(st.integers(1, 4), st.binary(max_size=40)), max_size=60)


def events(rows: list[tuple[int, bytes]]) -> list[bytes]:
    """Return each row as an event, a window of its own, with the event that ends it."""
    found = []
    for scn, (src_id, body) in enumerate(rows, 1):
        found.append(
            encode(Event(scn, scn * 10, src_id, 0, scn, Opcode.UPSERT, Part(body, bytes(16)), None))
        )
        found.append(encode(end_of_period(scn, scn * 10, 0)))
    return found


@settings(max_examples=200)
@given(rows=ROWS, cut=st.integers(0, 200))
def test_compiled_code_and_python_count_the_same_up_to_the_last_whole_event(
    rows: list[tuple[int, bytes]], cut: int
) -> None:
    assert compiled_tally is not None
    whole = events(rows)
    data = b"".join(whole)
    data = data[: max(0, len(data) - cut)]
    compiled: Found = {}
    python: Found = {}
    assert compiled_tally(data, compiled) == tally_in_python(data, python)
    assert compiled == python
    if cut == 0:
        assert {k: v[0] for k, v in python.items()} == Counter(src_id for src_id, _ in rows)
        assert sum(v[1] for v in python.values()) == sum(map(len, whole[::2]))
        assert {k: v[2] for k, v in python.items()} == {
            src_id: scn * 10 for scn, (src_id, _) in enumerate(rows, 1)
        }


@pytest.mark.parametrize("tally", [compiled_tally, tally_in_python])
def test_bytes_that_are_no_event_are_refused(tally: object) -> None:
    assert callable(tally)
    with pytest.raises(ProtocolError):
        tally(bytes(100), {})


def test_the_tables_of_a_relay_have_the_rows_that_were_put_in(tmp_path: Path) -> None:
    relay = ServedRelay(tmp_path)
    try:
        relay.put(transaction(1, insert(1), insert(2), insert(3, table=ORDERS)))
        relay.put(transaction(2, insert(4)))

        def rows() -> dict[str, int]:
            found = json.loads(relay.get("/api/v1/tables").body)
            assert found["missedBytes"] == 0
            return {one["source"]: one["rows"] for one in found["tables"]}

        wait_until(lambda: rows() == {"shop.person": 3, "shop.orders": 1}, "the counts")
        newest = {
            one["source"]: one["newestAt"]
            for one in json.loads(relay.get("/api/v1/tables").body)["tables"]
        }
        assert newest == {"shop.person": 2.0, "shop.orders": 1.0}
    finally:
        relay.close()
