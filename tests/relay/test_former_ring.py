"""A relay that finds the ring of an earlier version: what it answers, and what it says."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from databus.relay.ring.ring import Ring
from databus.schemas.avro_meta import column_of
from databus.schemas.avro_rows import row_codec, schema_id
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.stream.stream_reader import walk
from tests.registry.former_texts import make_store_former
from tests.relay.fakes import ORDERS, ServedRelay, insert, transaction, wait_until
from tests.relay.ring.test_upgrade import as_former

RING_BYTES = 1 << 18
RINGS = {"name": "shop", "uri": "fake:", "sources": ["shop.person", "shop.orders"]}
LAST = 100


def start(tmp_path: Path) -> ServedRelay:
    return ServedRelay(tmp_path, physical_sources=[RINGS | {"ring_bytes": RING_BYTES}])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with closing(start(tmp_path)) as relay:
        relay.put(*(transaction(scn, insert(scn, "x", ORDERS)) for scn in range(1, LAST + 1)))
    path = tmp_path / "data" / "shop.ring"
    with closing(Ring.open(path, "shop", RING_BYTES)) as ring:
        head, tail = ring.head, ring.tail
    ids = make_store_former(path.with_name("schemas.db"))
    as_former(path, head, tail, ids)
    path.with_name("shop.sources.json").unlink()  # versions of such rings had none
    data = path.read_bytes()
    assert any(former in data for former in ids.values())
    assert not any(now in data for now in ids)
    return path


def test_its_events_have_the_ids_of_the_schemas_that_are_registered(
    path: Path, tmp_path: Path
) -> None:
    assert b'"meta":{' in path.with_name("schemas.db").read_bytes()
    with closing(start(tmp_path)) as relay:
        listed = json.loads(relay.get("/register", sources="2").body)
        (text,) = (schema["schema"] for schema in listed)
        assert column_of(json.loads(text)["fields"][0]) == "id"
        assert isinstance(json.loads(text)["meta"], str)
        body = relay.stream(checkPoint=Checkpoint.at(1).to_json()).body
        rows = [event for event in walk(body) if not event.is_control]
        assert {event.schema_id for event in rows} == {schema_id(text)}
        assert row_codec(text).decode(rows[0].value)["id"] == 2


def test_its_windows_are_served(path: Path, tmp_path: Path) -> None:
    with closing(start(tmp_path)) as relay:
        found = [
            event.scn
            for event in walk(relay.stream(checkPoint=Checkpoint.at(1).to_json()).body)
            if event.is_eop
        ]
        assert found == list(range(2, LAST + 1))
        wait_until(lambda: relay.get("/health").status == 200)


def test_without_its_windows_the_relay_says_that_it_begins_anew(path: Path, tmp_path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-RING_BYTES + 100, 2)
        file.write(b"\xff" * 8)
    with closing(start(tmp_path)) as relay:
        answer = relay.stream(checkPoint=Checkpoint.at(1).to_json())
        cause = "com.linkedin.databus.core.ScnNotFoundException"
        assert (answer.status, answer.headers["x-dbus-error-cause"]) == (404, cause)
        noted = json.loads(relay.get("/api/v1/problems").body)["problems"]
        assert any(f"begins anew after scn {LAST}" in problem["text"] for problem in noted)
        relay.put(transaction(LAST + 1, insert(LAST + 1, "x", ORDERS)))
        wait_until(lambda: relay.get("/health").status == 200)
