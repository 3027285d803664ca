"""Changes on their way to a sink's process."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from databus.client.sinks.contract import ChangeOp, Opening, Position, TransactionInfo
from databus.client.sinks.isolated.changes import (
    CHANGES_A_MESSAGE,
    decoded,
    encoded,
    opening_of,
    opening_values,
)
from databus.schemas.checkpoint import Checkpoint
from tests.client.sinks.changes import made, moved, mysql_schema

VALUES: dict[str, Any] = {
    "price": Decimal("1.20"),
    "at": datetime(2026, 1, 2, 3, 4, 5, 6),
    "day": date(2026, 1, 2),
    "took": timedelta(microseconds=-1),
    "data": b"\x00\xff",
    "note": None,
    "tags": {"a": [1, 2.5]},
}
PLACE = Position("shop", Checkpoint.at(9, 1_000))


def test_every_field_comes_through() -> None:
    schema = mysql_schema(price="decimal(5,2)")
    info = TransactionInfo(9, 99, "0-1-9", 3, "catch_up")
    changes = [
        made("insert", 1, **VALUES),
        *moved(1, 2, **VALUES),
        replace(made("delete", 3), schema=schema, position=PLACE, transaction=info, index=4),
        replace(made("ddl", 4), statement="ALTER TABLE", transaction=info),
        replace(made("truncate", 5), key={}),
    ]
    (message,) = encoded(changes)
    found = decoded(message)
    assert found == changes
    assert [one.position for one in found] == [one.position for one in changes]
    assert [one.schema for one in found] == [one.schema for one in changes]
    assert [one.transaction for one in found] == [one.transaction for one in changes]
    assert all(type(one.op) is ChangeOp for one in found)
    assert found[3].transaction is found[4].transaction


def test_rows_of_any_mapping_are_dictionaries_there() -> None:
    (message,) = encoded([replace(made("insert", 1), after=MappingProxyType({"id": 1}))])
    assert decoded(message)[0].after == {"id": 1}


def test_many_changes_are_several_messages() -> None:
    changes = [made("insert", key) for key in range(2 * CHANGES_A_MESSAGE + 1)]
    messages = list(encoded(changes))
    assert [len(decoded(one)) for one in messages] == [CHANGES_A_MESSAGE, CHANGES_A_MESSAGE, 1]
    assert [one.key["id"] for message in messages for one in decoded(message)] == list(
        range(2 * CHANGES_A_MESSAGE + 1)
    )
    assert list(encoded([])) == []


def test_an_opening_comes_through() -> None:
    for opening in (Opening("a", "shop"), Opening("a", "shop", PLACE)):
        assert opening_of(opening_values(opening)) == opening
