"""Changes out of an archive are those that the relay streams, with and without the relay."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from databus.client.spark import register
from databus.client.spark.arrow.row_types import arrow_schema
from databus.client.spark.source.change_stream import ChangeStream, changes_type, read_changes
from databus.client.spark.source.changes_between import ranges_of_changes
from databus.client.spark.source.range_reader import close_readers
from databus.schemas.errors import DatabusError, ReadAgainError, SettingsError
from tests import PATIENCE_S
from tests.promises.running import RunningRelay, Shop, running, wait_until

pytest_plugins = ["tests.relay.log.archive.archives"]

Rows = list[dict[str, Any]]


@pytest.fixture
def relay(tmp_path: Path, uri: str) -> Iterator[RunningRelay]:
    """A relay with a few segments in the archive, rows of two schema versions, all kinds of ops."""
    shop = Shop(tmp_path / "shop.db")
    log = {"segment_bytes": 64 << 10, "sync_ms": 5, "compression": "none", "archive": uri}
    with running(RunningRelay(tmp_path, shop.settings(log=log)).start()) as relay:
        changes = 0
        for begin in range(1, 400, 40):
            if begin == 201:
                shop.connection.execute("ALTER TABLE orders ADD COLUMN price REAL")
            changes += change_rows(shop, range(begin, begin + 40))
            relay.wait_for_scn(changes)
        # All of it: what is archived does not grow while a test looks at it.
        wait_until(
            lambda: waiting(relay) == 0, "an archive", lambda: str(segments(relay)), PATIENCE_S
        )
        assert len(segments(relay)) > 3
        yield relay
    shop.close()


def change_rows(shop: Shop, numbers: range) -> int:
    """Insert, update and delete rows in many transactions; return the number of changes."""
    rand, changes = random.Random(numbers.start), 0
    for number in numbers:
        key = rand.randint(10, number * 10)
        rows = [(k, "x" * rand.randint(1, 300)) for k in range(number * 10, number * 10 + 7)]
        with shop.transaction():
            run = shop.connection.execute
            for row in rows:
                changes += run("INSERT INTO orders (id, note) VALUES (?, ?)", row).rowcount
            changes += run("UPDATE orders SET note = 'new' WHERE id = ?", (key,)).rowcount
            changes += run("DELETE FROM orders WHERE id = ?", (key + 1,)).rowcount
    return changes


def segments(relay: RunningRelay) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(relay.get("/segments").body)["segments"]
    return found


def waiting(relay: RunningRelay) -> int | None:
    """Return how many segments are not in the archive yet; None while that is not known."""
    (shop,) = json.loads(relay.get("/api/v1/physicalSources").body)["physicalSources"]
    relay_log, newest = shop["relayLog"], shop["ring"]["maxScn"]
    known: int | None = relay_log["archive"]["waitingSegments"]
    return known if relay_log["durableScn"] == newest else None


def first_scn(relay: RunningRelay) -> str:
    """Return the first SCN of the log, as nothing is known of what was before."""
    return str(segments(relay)[0]["firstScn"])


def read(options: dict[str, str]) -> tuple[list[dict[str, Any]], Rows]:
    """Return the ranges of a batch, and its rows in the order of SCNs and indexes."""
    given = {"mode": "changes", "sources": "shop.orders", "retrySeconds": "1"} | options
    ranges, schema = ranges_of_changes(given), changes_type(given)
    try:
        batches = [b for one in ranges for b in read_changes(given, schema, one)]
    finally:
        close_readers()
    rows = pa.Table.from_batches(batches, arrow_schema(schema)).to_pylist()
    rows.sort(key=lambda row: (row["_databus"]["scn"], row["_databus"]["index"]))
    return [json.loads(one) for one in ranges], rows


def test_every_row_is_as_the_relay_streams_it(relay: RunningRelay, uri: str) -> None:
    first, last = int(first_scn(relay)), segments(relay)[-1]["lastScn"]
    inner, end = segments(relay)[1]["firstScn"], segments(relay)[-1]["firstScn"]
    for after, until in ((first, last), (inner, end), (first, inner)):
        places = {"after": str(after), "until": str(until)}
        _, streamed = read({"relays": relay.url} | places)
        ranges, archived = read({"archive": uri} | places)
        assert archived == streamed
        assert len(archived) > 3
        assert {one["kind"] for one in ranges} == {"ArchiveRange"}
    ops = {row["_databus"]["op"] for row in read({"archive": uri, "after": first_scn(relay)})[1]}
    assert ops == {"insert", "update", "delete"}
    versions = {
        row["_databus"]["schema_version"]
        for row in read({"archive": uri, "after": first_scn(relay)})[1]
    }
    assert versions == {1, 2}


def test_a_filter_chooses_the_same_rows(relay: RunningRelay, uri: str) -> None:
    mod = {"partitionType": "MOD"}
    mod |= {"filters": [{"numBuckets": 3, "bktRange": {"start": 0, "end": 1}}]}  # type: ignore[dict-item]
    until = str(segments(relay)[-1]["lastScn"])
    wanted = {
        "filters": json.dumps({"shop.orders": mod}),
        "after": first_scn(relay),
        "until": until,
    }
    _, streamed = read({"relays": relay.url} | wanted)
    assert read({"archive": uri} | wanted)[1] == streamed
    assert 100 < len(streamed) < len(read({"archive": uri, "after": first_scn(relay)})[1])


def test_what_is_not_archived_yet_comes_from_the_relay(relay: RunningRelay, uri: str) -> None:
    ranges, rows = read({"relays": relay.url, "archive": uri, "after": first_scn(relay)})
    assert rows == read({"relays": relay.url, "after": first_scn(relay)})[1]
    kinds = [one["kind"] for one in ranges]
    assert kinds[-1] == "LogRange"
    assert kinds[0] == "ArchiveRange"


def test_spark_reads_an_archive_after_its_relay_is_gone(
    spark: SparkSession, relay: RunningRelay, uri: str
) -> None:
    register(spark)
    last = segments(relay)[-1]["lastScn"]
    _, streamed = read({"relays": relay.url, "after": first_scn(relay), "until": str(last)})
    begin = first_scn(relay)
    relay.child.stop()
    # More may be archived until the relay ends.
    places = {"after": begin, "until": str(last)}
    frame = spark.read.format("databus").options(mode="changes", archive=uri, **places)
    changes = frame.load("shop.orders")
    assert changes.rdd.getNumPartitions() >= 4
    found = [row.asDict(recursive=True) for row in changes.collect()]
    found.sort(key=lambda row: (row["_databus"]["scn"], row["_databus"]["index"]))
    assert [(r["id"], r["note"], r["price"]) for r in found] == [
        (r["id"], r["note"], r["price"]) for r in streamed
    ]
    relay.start()


def test_where_nothing_is_new_there_are_no_rows(relay: RunningRelay, uri: str) -> None:
    inner, last = segments(relay)[1]["firstScn"] + 1, segments(relay)[-1]["lastScn"]
    for scn in (inner, last):
        for servers in ({"archive": uri}, {"archive": uri, "relays": relay.url}):
            assert read({**servers, "after": str(scn), "until": str(scn)})[1] == []
    with pytest.raises(SettingsError, match=r"option until = 1 is before option after = 2"):
        read({"archive": uri, "after": "2", "until": "1"})


def test_what_an_archive_does_not_have_is_refused(relay: RunningRelay, uri: str) -> None:
    last = segments(relay)[-1]["lastScn"]
    with pytest.raises(SettingsError, match="does not have all windows"):
        read({"archive": uri, "after": first_scn(relay), "until": str(last + 1)})
    with pytest.raises(SettingsError, match="does not have all windows"):
        read({"archive": uri, "after": str(int(first_scn(relay)) - 1)})
    with pytest.raises(ReadAgainError, match=rf"in the future, the newest archived is {last}"):
        read({"archive": uri, "after": str(last + 1)})
    with pytest.raises(DatabusError, match="no log in it has the sources"):
        read({"archive": uri, "after": first_scn(relay), "sources": "shop.people"})
    with pytest.raises(SettingsError, match="is only for"):
        ChangeStream({"sources": "shop.orders", "archive": uri, "relays": relay.url})
