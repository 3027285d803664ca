"""A change as an object of JSON."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from hypothesis import given, strategies as st

from databus.client.sinks.contract import Change, ChangeOp, TransactionInfo
from databus.client.sinks.formats.plain import json_line, plain_json, plain_key, plain_message
from databus.schemas.event.json import json_value

NUMBERS = st.integers(0, 1 << 63)
VALUES = (
    st.none()
    | st.text()
    | st.integers()
    | st.floats()
    | st.binary()
    | st.decimals(allow_nan=False, allow_infinity=False, places=3)
)
ROWS = st.dictionaries(st.text(), VALUES, max_size=4)
PHASES = st.sampled_from(["live", "snapshot"])
INFOS = st.builds(
    TransactionInfo,
    NUMBERS,
    NUMBERS,
    st.none() | st.text(),
    phase=st.sampled_from(["live", "snapshot"]),
)
CHANGES = st.builds(
    Change,
    st.sampled_from(ChangeOp),
    st.text(),
    ROWS,
    st.none() | ROWS,
    st.none() | ROWS,
    INFOS,
    NUMBERS,
    NUMBERS,
    NUMBERS,
    statement=st.just("") | st.text(),
)


def read(data: bytes) -> Any:
    """Return JSON with the order of its members. Two ways to write a float are equal."""
    return json.loads(data, object_pairs_hook=list)


def members(change: Change) -> dict[str, Any]:
    found: dict[str, Any] = {
        "op": change.op.value,
        "source": change.source,
        "key": change.key,
        "before": change.before,
        "after": change.after,
        "scn": change.scn,
        "index": change.index,
        "committedNs": change.timestamp_ns,
        "gtid": change.transaction.gtid,
        "phase": change.transaction.phase,
    }
    return found | ({"statement": change.statement} if change.statement else {})


@given(CHANGES)
def test_the_bytes_of_a_change_are_those_of_its_object(change: Change) -> None:
    message = plain_message(change, 5)
    assert read(message.value) == read(json.dumps(json_value(members(change))).encode())
    assert plain_json(change) == json.loads(message.value)
    assert message.key == plain_key(change)
    assert json_line(change) == message.value + b"\n"


def test_a_change_has_these_members() -> None:
    info = TransactionInfo(7, 1_000, "0-1-2", 1)
    row = {"id": 1, "price": Decimal("1.50"), "note": None}
    change = Change(ChangeOp.UPDATE, "shop.t", {"id": 1}, None, row, info, 7, 1_000, 3)
    assert json_line(change) == (
        b'{"op":"update","source":"shop.t","key":{"id":1},"before":null,'
        b'"after":{"id":1,"price":"1.50","note":null},"scn":7,"index":3,"committedNs":1000,'
        b'"gtid":"0-1-2","phase":"live"}\n'
    )
