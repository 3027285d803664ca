"""Schemas that earlier versions wrote, and their ids, in the form of now."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from databus.registry.earlier_schemas import earlier_id, earlier_ids, renewed
from databus.schemas.avro_rows import schema_id
from databus.schemas.table import Column, Table
from databus.schemas.table_change import TableChange, change_of, shape_id, step, with_change
from databus.schemas.table_schema import avro_schema
from tests.schemas import avro_java
from tests.schemas.table_schemas import table_schemas

# The schemas of the 200 tables as the last version before wrote them.
EARLIER = [
    json.loads(line)
    for line in (Path(avro_java.HERE) / "earlier_tables.jsonl").read_text("utf-8").splitlines()
]
# Written by hand, or by LinkedIn's relay: nothing of them is ours.
FOREIGN = [
    *(answer.text for answer in avro_java.read(avro_java.RECORDED)),
    '{"type":"record","name":"R","fields":[{"name":"f","type":"int"}]}',
    '{"type":"record","name":"R","fields":[{"name":"f","type":"int","meta":{"owner":"me"}}],'
    '"meta":{"source":"R"}}',
    '{"type":"record","name":"R","fields":[],"meta":"source=R;owner=me;"}',
    "not a schema",
]


def test_earlier_texts_become_those_that_are_made_now() -> None:
    assert renewed(EARLIER) == table_schemas()


def test_texts_of_now_are_left_alone() -> None:
    assert renewed(table_schemas()) == table_schemas()


def test_texts_that_are_not_ours_are_left_alone() -> None:
    assert renewed(FOREIGN) == FOREIGN


def test_the_earlier_ids_follow_from_the_texts_of_now() -> None:
    ids = earlier_ids(renewed(EARLIER))
    for earlier, now in zip(EARLIER, table_schemas(), strict=True):
        assert ids[earlier_id(earlier)] == schema_id(now)


def test_the_earlier_id_of_a_foreign_text_is_that_of_itself() -> None:
    ids = earlier_ids(FOREIGN)
    for text in FOREIGN:
        assert ids.get(earlier_id(text), earlier_id(text)) == schema_id(text)


@pytest.mark.parametrize("count", [2, 3])
def test_a_chain_of_changes_is_whole_after_renewal(count: int) -> None:
    """A version names the one before by its id, which is another one now."""
    earlier, now = _history(count)
    renewed_texts = renewed(earlier)
    assert renewed_texts == now
    for before, after in pairwise(renewed_texts):
        assert not step(before, after).needs_reload
    ids = earlier_ids(renewed_texts)
    assert [ids[earlier_id(text)] for text in earlier] == [schema_id(text) for text in now]


def test_a_change_of_a_version_that_is_not_there_keeps_its_id() -> None:
    earlier, now = _history(2)
    change = change_of(renewed(earlier[1:])[0])
    assert change is not None
    assert change.before == earlier_id(earlier[0]).hex() != shape_id(now[0])
    assert earlier_ids(renewed(earlier[1:]))[earlier_id(earlier[1])]


def _history(count: int) -> tuple[list[str], list[str]]:
    """Return versions of a table that columns are added to, of then and of now."""
    earlier, now = [], []
    for number in range(count):
        columns = [
            Column(f"c{n}", "decimal(5,2)", n, key_position=0 if n == 0 else None)
            for n in range(number + 1)
        ]
        text = avro_schema(Table("shop.t", tuple(columns)))
        was = _earlier_text(text, None)
        if number:
            change = TableChange(100 + number, shape_id(now[-1]), added={f"c{number}": None})
            text = with_change(text, change)
            was = _earlier_text(text, _earlier_shape(earlier[-1]))
        earlier.append(was)
        now.append(text)
    return earlier, now


def _earlier_text(text: str, before: str | None) -> str:
    """Return a text of now as it was written before, by rules of this test alone."""
    record = json.loads(text)
    columns = []
    for field in record["fields"]:
        members = dict(member.split("=", 1) for member in field["meta"].rstrip(";").split(";"))
        meta = {"column": members["column"], "position": int(members["position"])}
        meta |= {"sqlType": members["sqlType"]}
        if "key" in members:
            meta |= {"key": int(members["key"])}
        columns.append({**field, "meta": meta})
    members = dict(member.split("=", 1) for member in record["meta"].rstrip(";").split(";"))
    meta = {"source": members["source"], "dialect": members["dialect"]}
    meta |= {"key": members["key"].split(",")}
    if before is not None:
        meta |= {"change": {**json.loads(members["change"]), "before": before}}
    return json.dumps({**record, "fields": columns, "meta": meta}, separators=(",", ":"))


def _earlier_shape(text: str) -> str:
    record = json.loads(text)
    record["meta"].pop("change", None)
    return earlier_id(json.dumps(record, separators=(",", ":"))).hex()
