"""Statements that changed rows without logging them are counted, and shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from databus.relay.sources.source import TableAltered, TableDefined
from databus.relay.unlogged_rows import UnloggedCounts, UnloggedRows
from databus.schemas.event.control import statement_of
from databus.schemas.stream.stream_reader import walk
from databus.schemas.table_change import UNLOGGED_ROWS, TableChange, change_of
from tests.relay.fakes import PERSON, ServedRelay, insert, transaction

RESTS = TableAltered(PERSON, PERSON, TableChange.unknown(-1, "", UNLOGGED_ROWS))
DELETED = TableDefined((PERSON.source,), "shop", "DELETE FROM person", (RESTS,), is_dml=True)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedRelay]:
    relay = ServedRelay(tmp_path)
    yield relay
    relay.close()


def test_a_statement_comes_with_a_version_that_says_that_all_rows_must_be_read_again(
    served: ServedRelay,
) -> None:
    served.put(transaction(1, insert(1)), transaction(2, insert(2), DELETED))
    served.put(transaction(3, insert(3)))
    events = list(walk(served.stream(ddl="true").body))
    (told,) = [statement_of(event) for event in events if event.is_dml]
    assert (told.statement, told.is_dml) == ("DELETE FROM person", True)
    versions = served.relay.registry.versions(PERSON.source)
    assert told.schemas == {PERSON.source: versions[-1].schema_id.hex()}
    change = change_of(versions[-1].text)
    assert change is not None
    assert (change.scn, dict(change.reload)) == (2, {"": UNLOGGED_ROWS})
    ids = [event.schema_id for event in events if not event.is_control]
    assert ids[-1] == versions[-1].schema_id
    assert not [event for event in walk(served.stream().body) if event.is_statement]


def test_they_are_counted_and_warned_of_in_status_and_metrics(served: ServedRelay) -> None:
    served.put(transaction(1, insert(1)))
    assert served.relay.status()["shop"]["unloggedStatements"] == []
    served.put(transaction(2, DELETED, DELETED), transaction(3, DELETED))
    status = served.relay.status()["shop"]
    assert status["unloggedStatements"] == [{"source": PERSON.source, "windows": 2, "lastScn": 3}]
    (warning,) = status["warnings"]
    assert "2 transactions" in warning
    assert "scn 3" in warning
    assert (
        'databus_relay_unlogged_statements_total{physical_source="shop"} 2'
        in served.get("/metrics").body.decode()
    )
    # A relay that starts again has them from its registry.
    again = UnloggedCounts(served.relay.registry)
    assert again.of((PERSON.source, "no.such")) == (UnloggedRows(PERSON.source, 2, 3),)
