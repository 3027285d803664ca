"""What a stream request promises, through the whole stack: filters, forms, waiting."""

from __future__ import annotations

import gzip
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from databus.schemas.avro_rows import RowCodec
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.event import v1 as event_v1, v2 as event_v2
from databus.schemas.event.event import Event
from databus.schemas.filters import AnyOf, ModFilter, RangeFilter
from databus.schemas.stream.stream_reader import StreamReader, Window, walk
from tests import PATIENCE_S
from tests.promises.running import (
    Answer,
    Remembering,
    RunningRelay,
    Shop,
    consuming,
    running,
    stream_requests,
    wait_until,
)

ROWS = 2000
WAIT_S = 20
# The wanted tables, one that is left out, and two whose names a pattern would take in by mistake.
TABLES = ("order_1", "order_2", "order_tmp", "order_", "border_1")


@pytest.fixture
def filled(relay: RunningRelay, shop: Shop) -> RunningRelay:
    """The relay with one window of 2,000 rows, then windows of one."""
    shop.insert(*range(-ROWS // 2, ROWS // 2), each=ROWS, note="y" * 100)
    wait_until(lambda: len(relay.windows()) == 1, "the large window")
    for number in range(ROWS, ROWS + 20):
        shop.insert(number)
    wait_until(lambda: events_in(relay) == ROWS + 20, "the rows")
    return relay


def events_in(relay: RunningRelay) -> int:
    return sum(1 for e in walk(b"".join(relay.windows().values())) if e.src_id > 0)


def test_the_partitions_of_a_mod_filter_are_everything_exactly_once(
    filled: RunningRelay, shop: Shop
) -> None:
    parts = []
    for number in range(3):
        seen = Remembering()
        # A window far larger than an answer, of which most is filtered out.
        options = {
            "fetch_bytes": 3000,
            "filters": {"shop.orders": ModFilter(3, number, number + 1)},
        }
        with consuming([filled.url], ["shop.orders"], seen, **options):
            wait_until(lambda s=seen: s.scn >= filled.max_scn(), "the end")  # type: ignore[misc]
        parts.append(seen)
        assert not seen.rollbacks
        assert all(abs(e.wire_key) % 3 == number for e in seen.events)  # type: ignore[arg-type]
    counts = Counter(event.wire_key for seen in parts for event in seen.events)
    assert counts == dict.fromkeys(shop.rows(), 1)


def test_a_filter_that_lets_little_through_lets_all_of_that_through(
    filled: RunningRelay, shop: Shop
) -> None:
    seen = Remembering()
    wanted = AnyOf((RangeFilter(-3, 3), RangeFilter(ROWS + 19, ROWS + 50)))
    options = {"fetch_bytes": 2000, "filters": {"shop.orders": wanted}}
    with consuming([filled.url], ["shop.orders"], seen, **options):
        wait_until(lambda: seen.scn >= filled.max_scn(), "the end")
    assert [event.wire_key for event in seen.events] == [-3, -2, -1, 0, 1, 2, ROWS + 19]


def test_a_window_cut_by_size_comes_whole_when_the_relay_is_killed_in_between(
    filled: RunningRelay,
) -> None:
    wanted = (
        '{"1":{"partitionType":"MOD","filters":[{"numBuckets":7,"bktRange":{"start":2,"end":4}}]}}'
    )
    reader, keys, checkpoint = StreamReader(1 << 26), [], Checkpoint.flexible()
    for turn in range(100):
        answer = filled.stream(checkpoint, size=5000, filters=wanted)
        for found in reader.receive(answer.body):
            assert isinstance(found, Window)
            keys += [event.key for event in found.events]
        scn, offset = map(int, answer.headers["x-databus-resume"].split(","))
        checkpoint = Checkpoint(window_scn=scn, window_offset=offset, prev_scn=scn - 1)
        if not answer.body:
            break
        if turn == 3:
            assert offset > 0
            filled.child.kill()
            filled.start()
    all_keys = [*range(-ROWS // 2, ROWS // 2), *range(ROWS, ROWS + 20)]
    assert keys == [key for key in all_keys if abs(key) % 7 in (2, 3)]


def test_gzip_is_given_when_asked_for_and_only_then(filled: RunningRelay) -> None:
    asked: dict[str, Any] = {"sources": "shop.orders", "size": 1 << 20, "maxev": 2}
    plain = filled.get("/stream", **asked)
    zipped = filled.get("/stream", headers={"Accept-Encoding": "deflate, gzip;q=0.5"}, **asked)
    refused = filled.get("/stream", headers={"Accept-Encoding": "gzip;q=0"}, **asked)
    assert "Content-Encoding" not in plain.headers
    assert zipped.headers["Content-Encoding"] == "gzip"
    assert len(zipped.body) < len(plain.body) / 2
    assert gzip.decompress(zipped.body) == plain.body == refused.body
    assert zipped.headers["x-databus-resume"] == plain.headers["x-databus-resume"]


def test_a_held_request_ends_when_data_comes(filled: RunningRelay, shop: Shop) -> None:
    answers: list[tuple[float, Answer]] = []

    def ask() -> None:
        answer = filled.stream(Checkpoint.at(newest), wait=1000 * WAIT_S)
        answers.append((time.monotonic(), answer))

    newest, asked = filled.max_scn(), stream_requests(filled)
    thread, asked_s = threading.Thread(target=ask), time.monotonic()
    thread.start()
    wait_until(lambda: stream_requests(filled) > asked, "the request")
    shop.insert(ROWS + 100)
    thread.join(PATIENCE_S)
    ((answered_s, answer),) = answers
    assert [e.key for e in walk(answer.body) if e.src_id > 0] == [ROWS + 100]
    assert answered_s - asked_s < WAIT_S


def test_version_1_is_given_to_those_who_ask_for_no_more(filled: RunningRelay) -> None:
    new = list(walk(filled.stream().body))
    for newest_version in (0, 1):
        body = filled.stream(maxev=newest_version).body
        assert body[0] == event_v1.VERSION
        old = list(walk(body))
        assert [b for e in old for b in event_v1.encode(e)] == list(body)
        assert [facts(e) for e in old] == [facts(e) for e in new]
    assert b"".join(event_v2.to_v1(e) for e in new) == body
    schema = filled.get("/register").json()[0]["schema"]
    codec = RowCodec(schema)
    rows = [codec.decode(e.value) for e in old if e.src_id > 0]
    assert [row["id"] for row in rows] == [
        *range(-ROWS // 2, ROWS // 2),
        *range(ROWS, ROWS + 20),
    ]


def facts(event: Event) -> tuple[object, ...]:
    return event.scn, event.src_id, event.key, event.value, event.opcode, event.timestamp_ns


def test_a_relay_killed_again_and_again_is_streamed_from_without_a_gap(
    shop: Shop, tmp_path: Path, relay: RunningRelay
) -> None:
    seen = Remembering()
    done = threading.Event()

    def write() -> None:
        number = 0
        while not done.wait(0.001):
            shop.insert(number, number + 1, each=2)
            number += 2

    writer = threading.Thread(target=write)
    directory = tmp_path / "state"
    with consuming([relay.url], ["shop.orders"], seen, checkpoint_dir=directory) as client:
        writer.start()
        try:
            for _ in range(3):
                count = len(seen.windows)
                wait_until(lambda c=count: len(seen.windows) > c + 30, "windows")  # type: ignore[misc]
                relay.child.kill()
                relay.start()
        finally:
            done.set()
            writer.join()
        wait_until(lambda: seen.rows("shop.orders") == shop.rows(), "all rows")
        assert client.is_healthy
    assert [e.row["id"] for e in seen.events] == sorted(shop.rows())
    assert seen.scns == list(relay.windows())


def test_the_tables_that_are_named_come_and_none_of_a_like_name(shop: Shop, tmp_path: Path) -> None:
    for table in TABLES:
        shop.connection.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY)")
    sources = [f"shop.{table}" for table in TABLES]
    seen = Remembering()
    with running(RunningRelay(tmp_path, shop.settings(sources=sources))) as relay:
        relay.start()
        with consuming([relay.url], sources[:2], seen, start="earliest"):
            for number in (1, 2):
                for table in TABLES:
                    shop.connection.execute(f"INSERT INTO {table} VALUES ({number})")
            wait_until(lambda: seen.scn >= relay.max_scn() and len(seen.events) >= 4, "the rows")
    found = sorted((event.source, event.wire_key) for event in seen.events)
    assert found == [(source, number) for source in sources[:2] for number in (1, 2)]
