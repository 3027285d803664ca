"""The normal form of schemas is what Avro 1.4.0 for Java prints."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from databus.schemas.avro_normal_form import normal_form
from databus.schemas.errors import SchemaError
from tests.schemas import avro_java as java
from tests.schemas.odd_schemas import odd_schemas
from tests.schemas.table_schemas import COUNT, table_schemas

KEPT = [(java.ODD, odd_schemas), (java.TABLES, table_schemas)]


@pytest.mark.parametrize("path", [java.ODD, java.TABLES], ids=lambda path: path.stem)
def test_each_normal_form_is_what_avro_printed_and_has_its_md5(path: Path) -> None:
    answers = [answer for answer in java.read(path) if answer.id is not None]
    assert len(answers) >= 150
    for text, digest, form in answers:
        # Java writes a question mark for half a character.
        data = normal_form(text).encode("utf-8", "replace")
        assert data.decode() == form, text
        assert hashlib.md5(data, usedforsecurity=False).hexdigest() == digest, text


def test_events_of_linkedins_own_relay_have_the_ids_of_its_schemas() -> None:
    """Both from a recording: texts that `/register` sent, and ids that events had."""
    for text, digest, _ in java.read(java.RECORDED):
        form = normal_form(text).encode()
        assert hashlib.md5(form, usedforsecurity=False).hexdigest() == digest


def test_avro_accepted_every_table() -> None:
    answers = java.read(java.TABLES)
    assert len(answers) == COUNT
    assert all(answer.id for answer in answers)


@pytest.mark.parametrize(("path", "make"), KEPT, ids=["odd", "tables"])
def test_the_kept_texts_are_those_that_are_generated(path: Path, make: object) -> None:
    """When this fails, run `python -m tests.schemas.avro_java`."""
    assert callable(make)
    assert [answer.text for answer in java.read(path)] == make()


@pytest.mark.avro_java
@pytest.mark.parametrize("path", [java.ODD, java.TABLES], ids=lambda path: path.stem)
def test_java_gives_the_kept_answers(path: Path) -> None:
    answers = java.read(path)
    assert java.ask([answer.text for answer in answers]) == answers


@pytest.mark.parametrize("text", ["", "{", "5", "null", '"missing"', "NaN", '{"type":"record"}'])
def test_a_text_that_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(SchemaError, match=r"not a schema that Avro 1\.4\.0 reads"):
        normal_form(text)


def test_a_schema_nested_too_deeply_is_refused() -> None:
    text = '{"type":"array","items":' * 5000 + '"int"' + "}" * 5000
    with pytest.raises(SchemaError):
        normal_form(text)


def test_white_space_and_the_order_of_keys_do_not_matter() -> None:
    spread = '{ "fields" : [ { "type" : "int", "name" : "a" } ], "name" : "R", "type" : "record" }'
    form = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'
    assert normal_form(spread) == form == normal_form(form)
