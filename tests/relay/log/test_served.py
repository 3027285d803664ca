"""A relay with a log serves what its ring has evicted, as if the ring were that large."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from databus.client import DatabusClient
from databus.relay import source_status
from databus.relay.cli.log import log
from databus.relay.log import history
from databus.relay.log.directory import folders_aside
from databus.relay.log.segment import segment_paths
from databus.relay.log.status import RelayLogStatus
from databus.relay.sources.source import Transaction
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.event.v2 import peek
from databus.schemas.stream.stream_reader import walk
from tests import PATIENCE_S
from tests.relay.admin.test_api import post, report
from tests.relay.fakes import (
    ORDERS,
    PERSON,
    Answer,
    ServedRelay,
    insert,
    transaction,
    wait_until,
)
from tests.relay.log.logs import damage_events
from tests.relay.ring.model import split_events

RING_BYTES = 64 << 10
LAST = 3000  # windows: several rings of them
SEED = 20261124


def settings(*, ring_bytes: int = RING_BYTES, **log: Any) -> dict[str, Any]:
    """Return the settings of a relay with a small ring and a log."""
    shop = {"name": "shop", "uri": "fake:", "sources": ["shop.person", "shop.orders"]}
    small = {"segment_bytes": 64 << 10, "sync_ms": 1} | log
    return {"physical_sources": [shop | {"ring_bytes": ring_bytes, "log": small}]}


def transactions(scns: range) -> Iterator[Transaction]:
    """Yield transactions of one to four rows; each depends on the seed and its SCN only."""
    print("seed", SEED)
    for scn in scns:
        rand = random.Random(SEED + scn)
        tables = rand.choices((PERSON, ORDERS), k=rand.randint(1, 4))
        rows = [insert(scn * 10 + n, "x" * rand.randint(1, 300), t) for n, t in enumerate(tables)]
        yield transaction(scn, *rows)


def fill(relay: ServedRelay, scns: range) -> None:
    """Commit transactions, and wait until the ring has them."""
    relay.source().put(*transactions(scns))
    relay.wait_for_scn(scns[-1])


def wait_for_log(relay: ServedRelay, scn: int) -> None:
    """Wait until the log has a window on disk."""
    wait_until(lambda: relay_log(relay).durable_scn >= scn)


def relay_log(relay: ServedRelay) -> RelayLogStatus:
    """Return the status of the log."""
    found = relay.relay.status_of("shop").relay_log
    assert found is not None
    return found


def read_all(relay: ServedRelay, **parameters: Any) -> tuple[list[bytes], int]:
    """Read from the oldest window to the newest; return the events and the number of answers."""
    events: list[bytes] = []
    checkpoint, answers = Checkpoint.flexible(), 0
    while True:
        answer = relay.stream(checkPoint=checkpoint.to_json(), **parameters)
        assert answer.status == 200, answer.headers["x-dbus-error-cause-message"]
        if not answer.body:
            return events, answers
        events += split_events(answer.body)
        answers += 1
        scn, offset = map(int, answer.headers["x-databus-resume"].split(","))
        assert offset == -1, "a window larger than an answer"
        checkpoint = Checkpoint.at(scn)


def filled(folder: Path, **log: Any) -> ServedRelay:
    """Return a relay whose log has all transactions on disk; the caller closes it."""
    served = ServedRelay(folder, **settings(**log))
    fill(served, range(1, LAST + 1))
    wait_for_log(served, LAST)
    return served


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[ServedRelay]:
    served = filled(tmp_path)
    yield served
    served.close()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The events of the same transactions, out of a ring that has all of them."""
    shop = {"name": "shop", "uri": "fake:", "sources": ["shop.person", "shop.orders"]}
    served = ServedRelay(
        tmp_path_factory.mktemp("large"), physical_sources=[shop | {"ring_bytes": 64 << 20}]
    )
    fill(served, range(1, LAST + 1))
    events, _ = read_all(served)
    served.close()
    return events


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("size", [5000, 50_000, 16 << 20])
def test_a_reader_gets_every_window_from_log_and_ring_once_and_in_order(
    relay: ServedRelay, expected: list[bytes], size: int
) -> None:
    ring = relay.relay.physical_sources["shop"].ring
    assert ring.min_scn > LAST // 2
    events, answers = read_all(relay, size=size)
    assert events == expected
    assert answers > 1


@pytest.mark.usefixtures("way")
def test_filters_choose_from_the_log_as_from_the_ring(
    relay: ServedRelay, expected: list[bytes]
) -> None:
    events, _ = read_all(relay, sources="shop.orders", size=20_000)
    orders = relay.relay.catalog.ids["shop.orders"]
    rows = [event for event in expected if peek(event).src_id == orders]
    assert [event for event in events if peek(event).src_id >= 0] == rows
    assert len(rows) > 1000


@pytest.mark.parametrize("most_bytes", [300, 20_000])
def test_an_answer_out_of_the_log_is_bounded_but_for_a_window_larger_than_that(
    relay: ServedRelay, expected: list[bytes], monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    monkeypatch.setattr(history, "MOST_BYTES", most_bytes)
    answer = relay.stream(size=50_000)
    assert 0 < len(answer.body) < max(most_bytes, 50_000)
    assert read_all(relay, size=50_000)[0] == expected


@pytest.mark.parametrize("ring_bytes", [RING_BYTES, 3 * RING_BYTES, 4 << 20])
def test_a_log_goes_on_after_a_restart_of_its_relay_with_a_ring_of_any_size(
    relay: ServedRelay, expected: list[bytes], tmp_path: Path, ring_bytes: int
) -> None:
    relay.close()
    again = ServedRelay(tmp_path, **settings(ring_bytes=ring_bytes))
    try:
        events, _ = read_all(again)
        assert events == expected
        fill(again, range(LAST + 1, 2 * LAST))
        later, _ = read_all(again)
        assert later[: len(expected)] == expected
        scns = [peek(event).scn for event in later if peek(event).is_eop]
        assert scns == list(range(1, 2 * LAST))
        assert relay_log(again).gap == ""
    finally:
        again.close()


def test_a_live_reader_is_sent_history_and_then_what_comes(relay: ServedRelay) -> None:
    relay.source().put(transaction(LAST + 1, insert(1)))
    relay.wait_for_scn(LAST + 1)
    answer = relay.stream(checkPoint=Checkpoint.at(LAST).to_json(), wait=5000)
    assert [event.scn for event in walk(answer.body) if event.is_eop] == [LAST + 1]


def test_a_time_a_gtid_and_the_ends_are_found_in_the_log(relay: ServedRelay) -> None:
    def position(at: str) -> Any:
        answer = relay.get("/api/v1/sources/shop.person/position", at=at)
        assert answer.status == 200, answer.body
        return json.loads(answer.body)

    oldest = relay.relay.physical_sources["shop"].ring.min_scn
    rand = random.Random(SEED)
    for scn in (2, *rand.sample(range(3, oldest), 20), oldest, oldest + 1, LAST):
        at = datetime.fromtimestamp(scn, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        assert position(f"time:{at}")["scn"] == str(scn - 1), at
        found, rung = position(str(scn)), "relayLog" if scn < oldest - 1 else "ring"
        assert (found["scn"], found["rung"]) == (str(scn), rung)
    assert position("earliest")["oldestScn"] == "1"
    assert position("latest")["scn"] == str(LAST)


@pytest.mark.usefixtures("way")
def test_rows_are_measured_in_the_log_as_they_are_read(
    relay: ServedRelay, expected: list[bytes]
) -> None:
    rand = random.Random(SEED)
    for begin in (1, *rand.sample(range(2, LAST - 100), 15)):
        answer = relay.get(
            "/measure",
            sources="shop.person,shop.orders",
            checkPoint=Checkpoint.at(begin).to_json(),
            rows=100,
        )
        assert answer.status == 200, answer.body
        measured = json.loads(answer.body)
        scns = [peek(e).scn for e in expected if peek(e).src_id >= 0 and peek(e).scn > begin]
        assert measured["rows"] == sum(begin < scn <= measured["scn"] for scn in scns) <= 100
        assert sum(scn <= measured["scn"] + 1 for scn in scns) > 100


def test_what_the_log_has_deleted_is_refused_with_its_oldest_window(tmp_path: Path) -> None:
    relay = ServedRelay(tmp_path, **settings(retention_bytes=1 << 20))
    try:
        fill(relay, range(1, LAST + 1))
        wait_for_log(relay, LAST)
        source = relay.relay.physical_sources["shop"]
        recorder = source.recorder
        assert recorder is not None
        recorder._writer.drop(2)  # type: ignore[union-attr]  # as the retention does
        oldest = recorder.segments[0].header.first_scn
        assert 1 < oldest < source.ring.min_scn
        refused = relay.stream(checkPoint=Checkpoint.at(1).to_json())
        assert refused.status == 404
        assert oldest_in(refused) == oldest
        served = relay.stream(checkPoint=Checkpoint.at(oldest - 1).to_json())
        assert next(walk(served.body)).scn == oldest
    finally:
        relay.close()


def test_a_time_is_measured_from_the_log_on(relay: ServedRelay) -> None:
    rand = random.Random(SEED)
    for scn in (400, *rand.sample(range(310, LAST), 15)):
        # The search goes back five minutes, so what it finds may begin earlier, but not later.
        answer = relay.get("/measure", sources="shop.person", since=scn * 1000, rows=1)
        assert answer.status == 200, answer.body
        measured = json.loads(answer.body)
        assert measured["fromScn"] == scn - 1
    answer = relay.get("/measure", sources="shop.person", since=0, rows=1)
    assert json.loads(answer.body)["fromScn"] == -1  # nothing is known of what came before


def test_a_segment_that_nobody_reads_any_more_is_deleted(tmp_path: Path) -> None:
    relay = ServedRelay(tmp_path, **settings(retention_bytes=1 << 20, compression="none"))
    try:
        step = LAST // 10  # far fewer bytes than are kept
        fill(relay, range(1, step))
        wait_for_log(relay, step - 1)
        assert peek(relay.stream().body).scn == 1  # the oldest segment is open now
        for begin in range(step, 3 * LAST, step):
            fill(relay, range(begin, begin + step))
        wait_until(lambda: relay_log(relay).min_scn > 1, PATIENCE_S)
        wait_until(lambda: relay_log(relay).share < 1.2, PATIENCE_S)
    finally:
        relay.close()


def test_a_disk_that_never_answers_is_said_too_and_a_pause_ends_the_wait(
    relay: ServedRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    sync = os.fdatasync

    def hangs(descriptor: int) -> None:
        answers.wait(PATIENCE_S)
        sync(descriptor)

    monkeypatch.setattr(source_status, "_LONG_WAIT_S", 0.2)
    monkeypatch.setattr(os, "fdatasync", hangs)
    relay.source().put(*transactions(range(LAST + 1, 2 * LAST)))
    wait_until(lambda: "its disk is too slow" in relay.relay.status_of("shop").problem)
    assert relay.get("/health").status == 503
    assert post(relay, "/physicalSources/shop/pause").status == 200
    assert relay.relay.status_of("shop").capture.state == "paused"
    answers.set()
    assert post(relay, "/physicalSources/shop/resume").status == 200
    relay.wait_for_scn(2 * LAST - 1)
    wait_until(lambda: relay.get("/health").status == 200)


def test_a_log_that_cannot_even_be_cut_is_opened_again_and_misses_nothing(
    relay: ServedRelay, expected: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_arguments: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    later = list(transactions(range(LAST + 1, 2 * LAST)))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fails)
        patch.setattr(os, "ftruncate", fails)
        relay.source().put(*later)
        wait_until(lambda: "capture waits" in relay.relay.status_of("shop").problem)
        wait_until(lambda: not relay_log(relay).is_joined)
        # Nobody knows now what the log has: neither served nor refused for good.
        assert relay.stream(checkPoint=Checkpoint.at(1).to_json()).status == 503
    relay.wait_for_scn(later[-1].scn)
    wait_for_log(relay, later[-1].scn)
    events, _ = read_all(relay)
    assert events[: len(expected)] == expected
    scns = [peek(event).scn for event in events if peek(event).is_eop]
    assert scns == list(range(1, 2 * LAST))
    assert relay_log(relay).gap == ""


def test_a_disk_that_cannot_be_read_is_no_reason_to_send_a_client_to_a_bootstrap(
    relay: ServedRelay, expected: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pread(_descriptor: int, _size: int, _offset: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    seen: list[int] = []
    client = DatabusClient([relay.url], start="scn:1", back_off={"first_s": 0.01, "max_s": 0.02})
    client.on("shop.person", "shop.orders")(lambda event: seen.append(event.scn))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", pread)
        refused = relay.stream(checkPoint=Checkpoint.at(1).to_json())
        assert refused.status == 503
        assert os.strerror(errno.EIO) in refused.body.decode()
        client.start()
        requests = relay.relay.traffic
        wait_until(lambda: requests.stream_requests > 5)
        assert seen == []
    wait_until(lambda: len(seen) > 0 and seen[-1] == LAST)
    client.stop()
    wanted = [peek(event).scn for event in expected if peek(event).src_id >= 0]
    assert seen == [scn for scn in wanted if scn > 1]


def test_api_and_metrics_say_what_the_log_holds(relay: ServedRelay) -> None:
    status = relay_log(relay)
    view = json.loads(relay.get("/api/v1/physicalSources/shop").body)["relayLog"]
    assert (view["minScn"], view["durableScn"]) == ("1", str(LAST))
    assert (view["oldestAt"], view["newestAt"]) == (1.0, float(LAST))
    assert (view["segments"], view["problem"]) == (status.segments, "")
    assert view["captureWaitsS"] is None
    metrics = relay.get("/metrics").body.decode()
    name = "databus_relay_relay_log"
    assert f'{name}_oldest_seconds{{physical_source="shop"}} 1.0' in metrics
    assert f'{name}_segments{{physical_source="shop"}} {float(status.segments)}' in metrics
    assert f'{name}_is_failing{{physical_source="shop"}} 0.0' in metrics
    assert f"{name}_waited_seconds_total" in metrics


def test_a_consumer_in_the_log_is_not_said_to_be_lagging_out(relay: ServedRelay) -> None:
    answer = relay.stream(
        checkPoint=Checkpoint.at(5).to_json(), headers={"x-databus-client": "late"}, size=4000
    )
    assert answer.status == 200
    (client,) = json.loads(relay.get("/api/v1/clients").body)["clients"]
    (position,) = client["positions"]
    assert client["state"] == "behind"
    assert position["behindS"] == LAST - 6
    assert position["edgeShare"] > 0.25
    assert position["isInLog"]
    metrics = relay.get("/metrics").body.decode()
    name = 'databus_relay_relay_log_read_bytes_total{physical_source="shop"}'
    (read,) = re.findall(re.escape(name) + r" (\S+)", metrics)
    assert float(read) >= len(answer.body)
    client_id = {"x-databus-client": "late"}
    relay.stream(checkPoint=Checkpoint.at(LAST - 1).to_json(), headers=client_id)
    (client,) = json.loads(relay.get("/api/v1/clients").body)["clients"]
    assert not client["positions"][0]["isInLog"]
    assert f"{name} {read}" in relay.get("/metrics").body.decode()


def test_a_segment_is_held_until_a_named_client_reports_that_it_has_read_it(
    tmp_path: Path,
) -> None:
    held = settings(retention_bytes=1 << 20, compression="none", hold=["Ann's consumer"])
    relay = ServedRelay(tmp_path, **held)
    try:
        fill(relay, range(1, 3 * LAST))
        wait_for_log(relay, 3 * LAST - 1)
        status = relay_log(relay)
        assert (status.min_scn, status.held_after_scn) == (1, -1)
        told = report()
        told["registrations"][0]["keptScn"] = str(LAST)
        headers = {"x-databus-client": "ann-1"}
        relay.stream(checkPoint=Checkpoint.at(LAST).to_json(), headers=headers)
        assert post(relay, "/clients/ann-1", told).status == 200
        wait_until(lambda: relay_log(relay).held_after_scn == LAST)
        fill(relay, range(3 * LAST, 4 * LAST))
        wait_until(lambda: 1 < relay_log(relay).min_scn <= LAST + 1)
        assert relay_log(relay).size_bytes > 1 << 20
        assert relay_log(relay).unread == ""
    finally:
        relay.close()


def test_a_ring_that_is_emptied_begins_a_log_anew_and_no_old_window_is_served(
    relay: ServedRelay,
) -> None:
    answer = post(relay, "/physicalSources/shop/restart", {"scn": str(LAST - 10)})
    assert answer.status == 200, answer.body
    wait_for_log(relay, LAST)
    wait_until(lambda: relay.stream(checkPoint=Checkpoint.at(1).to_json()).status == 404)
    events, _ = read_all(relay)
    scns = [peek(event).scn for event in events if peek(event).is_eop]
    assert scns == list(range(LAST - 9, LAST + 1))
    status = json.loads(relay.get("/controlSources/status").body)["shop"]["relayLog"]
    assert "another ring" in status["beganAnew"]


@pytest.mark.parametrize("harm", ["lost", "damaged", "copied"])
def test_what_is_no_longer_part_of_a_log_is_said_and_nothing_is_served_across_the_hole(
    tmp_path: Path, expected: list[bytes], harm: str
) -> None:
    relay = filled(tmp_path)
    folder = Path(relay_log(relay).folder)
    relay.close()
    paths = segment_paths(folder)
    middle = paths[len(paths) // 2]
    if harm == "lost":
        middle.unlink()
    elif harm == "copied":
        shutil.copy(middle, middle.with_name(f"a-{middle.name}"))
    else:
        data = bytearray(middle.read_bytes())
        data[0] ^= 1
        middle.write_bytes(data)
    relay = ServedRelay(tmp_path, **settings())
    try:
        wait_until(lambda: relay_log(relay).is_joined)
        events, _ = read_all(relay)
        if harm == "copied":
            assert events == expected
        else:
            assert events == expected[-len(events) :]
            assert len(events) < len(expected)
        warnings = relay.relay.status_of("shop").warning_texts
        told = ["segments lie before a hole" in text for text in warnings]
        assert told == ([] if harm == "copied" else [True])
        health = str(json.loads(relay.get("/health").body))
        assert ("before a hole" in health) is (harm != "copied")
    finally:
        relay.close()


def test_damage_that_a_reader_meets_is_a_warning_of_health(tmp_path: Path) -> None:
    relay = filled(tmp_path)
    try:
        wait_until(lambda: relay_log(relay).is_joined)
        assert relay.relay.status_of("shop").warning_texts == []
        paths = segment_paths(Path(relay_log(relay).folder))
        middle = paths[len(paths) // 2]
        damage_events(middle, 1 / 2)
        scn = next(scn for scn in range(1, LAST) if asked(relay, scn).status == 404)
        assert "is damaged" in str(asked(relay, scn).headers)
        (warning,) = relay.relay.status_of("shop").warning_texts
        assert f"{middle} is damaged" in warning
        assert str(middle) in str(json.loads(relay.get("/health").body))
    finally:
        relay.close()


def asked(relay: ServedRelay, scn: int) -> Answer:
    return relay.stream(checkPoint=Checkpoint.at(scn).to_json())


def test_the_api_shows_a_log_of_which_everything_is_held(tmp_path: Path) -> None:
    relay = ServedRelay(tmp_path, **settings(hold=["ledger"]))
    try:
        fill(relay, range(1, 10))
        wait_for_log(relay, 9)
        answer = relay.get("/api/v1/physicalSources")
        assert answer.status == 200
        (shown,) = json.loads(answer.body)["physicalSources"]
        assert int(shown["relayLog"]["heldAfterScn"]) == 0
    finally:
        relay.close()


def test_a_damaged_frame_with_whole_ones_behind_it_is_told_from_a_torn_end_and_kept(
    tmp_path: Path, expected: list[bytes]
) -> None:
    relay = filled(tmp_path, segment_bytes=256 << 20)
    folder = Path(relay_log(relay).folder)
    relay.close()
    (path,) = segment_paths(folder)
    damage_events(path, 1 / 4)
    data = path.read_bytes()
    verified = CliRunner().invoke(log, ["verify", str(folder)])
    assert (verified.exit_code, "whole frames lie behind" in verified.output) == (1, True)
    relay = ServedRelay(tmp_path, **settings(segment_bytes=256 << 20))
    try:
        wait_until(lambda: relay_log(relay).is_joined)
        # Nothing of what lies behind the damage is destroyed.
        kept = [path for aside in folders_aside(folder) for path in segment_paths(aside)]
        assert data in [path.read_bytes() for path in kept]
        (warning,) = relay.relay.status_of("shop").warning_texts
        assert "begins anew" in warning  # the ring has not what comes after the damage
        events, _ = read_all(relay)
        assert events == expected[-len(events) :]
    finally:
        relay.close()


def test_a_log_whose_folder_is_deleted_begins_anew_and_says_so(relay: ServedRelay) -> None:
    shutil.rmtree(relay_log(relay).folder)
    fill(relay, range(LAST + 1, LAST + 300))
    wait_until(lambda: "deleted or replaced" in relay_log(relay).gap)
    wait_until(lambda: relay_log(relay).durable_scn == LAST + 299)
    events, _ = read_all(relay)
    scns = [peek(event).scn for event in events if peek(event).is_eop]
    assert scns == list(range(scns[0], LAST + 300))


def test_a_log_that_cannot_be_written_holds_the_source_back_and_loses_nothing(
    tmp_path: Path, expected: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = ServedRelay(tmp_path, **settings())
    try:
        fill(relay, range(1, 200))
        is_full = True
        sync = os.fdatasync

        def fdatasync(descriptor: int) -> None:
            if is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            sync(descriptor)

        monkeypatch.setattr(os, "fdatasync", fdatasync)
        relay.source().put(*transactions(range(200, LAST + 1)))
        source = relay.relay.physical_sources["shop"]
        wait_until(lambda: "capture waits" in relay.relay.status_of("shop").problem)
        health = relay.get("/health")
        assert health.status == 503
        (trouble,) = json.loads(health.body)["troubles"]
        assert "capture waits, because the relay log cannot be written" in trouble["problem"]
        assert "make room" in trouble["problem"]
        assert segment_paths(tmp_path / "data" / "shop.relay-log")
        assert source.ring.max_scn < LAST
        is_full = False
        relay.wait_for_scn(LAST)
        assert read_all(relay)[0] == expected
        wait_until(lambda: relay.get("/health").status == 200)
    finally:
        relay.close()


def oldest_in(answer: Answer) -> int:
    """Return the oldest SCN that a refusal names."""
    text = answer.headers["x-dbus-error-cause-message"]
    return int(text.split("oldest held is ")[1].split(";")[0])
