"""A client that decodes zstd is sent history as it lies on disk: the same events as any other."""

from __future__ import annotations

import gzip
import random
import subprocess
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from zstandard import ZstdDecompressor

from databus.client import DatabusClient
from databus.client.spark.planning.server_pool import Server
from databus.relay.log import reader, segment as segments
from databus.relay.log.segment import segment_paths
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.event.v2 import peek
from databus.schemas.filters import ModFilter, filters_to_json
from tests.relay.fakes import Answer, ServedRelay, connect, wait_until
from tests.relay.log.logs import damage_events
from tests.relay.log.test_served import (
    LAST,
    SEED,
    fill,
    relay_log,
    settings,
    transactions,
    wait_for_log,
)
from tests.relay.ring.model import split_events

ZSTD = {"Accept-Encoding": "zstd"}
ASKED: dict[str, Any] = {"ddl": "true", "size": 1 << 20}


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[ServedRelay]:
    # One for each test: a relay closes a segment that nobody reads and opens it again, which would
    # look like a file that the next test leaves open.
    served = ServedRelay(tmp_path, **settings())
    fill(served, range(1, LAST + 1))
    wait_for_log(served, LAST)
    yield served
    served.close()


def events_of(answer: Answer) -> bytes:
    """Return what an answer has, decoded."""
    assert answer.status == 200, answer.body
    encoding = answer.headers["Content-Encoding"]
    if encoding == "gzip":
        return gzip.decompress(answer.body)
    if encoding is None:
        return answer.body
    assert encoding == "zstd"
    return unpacked(answer.body)


def unpacked(data: bytes) -> bytes:
    decoder = ZstdDecompressor().decompressobj(read_across_frames=True)
    return decoder.decompress(data)


def read_all(relay: ServedRelay, begin: Checkpoint, **asked: Any) -> tuple[bytes, list[bool]]:
    """Read up to the newest window; return the events, and of each answer whether it was zstd."""
    found: list[bytes] = []
    were_zstd: list[bool] = []
    checkpoint = begin
    while True:
        answer = relay.stream(checkPoint=checkpoint.to_json(), **ASKED | asked)
        data = events_of(answer)
        if not data:
            return b"".join(found), were_zstd
        found.append(data)
        were_zstd.append(answer.headers["Content-Encoding"] == "zstd")
        scn, offset = map(int, answer.headers["x-databus-resume"].split(","))
        assert offset == -1
        assert peek(split_events(data)[-1]).scn == scn
        assert len(data) <= int((ASKED | asked)["size"])
        checkpoint = Checkpoint.at(scn)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("size", [80_000, 300_000, 16 << 20])
def test_both_forms_have_the_same_events_from_every_place_on(relay: ServedRelay, size: int) -> None:
    print("seed", SEED)
    rand = random.Random(SEED)
    begins = [Checkpoint.flexible(), *map(Checkpoint.at, rand.sample(range(1, LAST), 6))]
    for begin in begins:
        plain, _ = read_all(relay, begin, size=size)
        packed, were_zstd = read_all(relay, begin, size=size, headers=ZSTD)
        assert packed == plain
        if begin.is_flexible:
            assert all(were_zstd[:-2])  # the newest windows come out of the ring
            assert were_zstd.count(True) > 1


def test_a_client_of_gzip_too_is_sent_whole_frames_where_there_are_some(tmp_path: Path) -> None:
    served = ServedRelay(tmp_path, **settings())
    try:
        fill(served, range(1, LAST + 1))
        wait_for_log(served, LAST)
        begin, both = Checkpoint.flexible(), {"Accept-Encoding": "gzip, zstd;q=0.5"}
        packed, were_zstd = read_all(served, begin, headers=both)
        assert packed == read_all(served, begin)[0]
        assert were_zstd.count(True) > 1
    finally:
        served.close()


def test_a_place_inside_a_frame_is_answered_up_to_its_end_and_then_by_whole_frames(
    relay: ServedRelay,
) -> None:
    first = relay.stream(checkPoint=Checkpoint.at(5).to_json(), headers=ZSTD, **ASKED)
    assert first.headers["Content-Encoding"] is None
    resume = int(first.headers["x-databus-resume"].split(",")[0])
    second = relay.stream(checkPoint=Checkpoint.at(resume).to_json(), headers=ZSTD, **ASKED)
    assert second.headers["Content-Encoding"] == "zstd"
    assert peek(events_of(second)).scn == resume + 1


@pytest.mark.parametrize(
    "asked",
    [
        {"sources": "shop.orders"},
        {"filters": filters_to_json({1: ModFilter(2, 0, 1)})},
        {"output": "json"},
        {"maxev": 0},
        {"ddl": "false"},
        {"headers": {"Accept-Encoding": "zstd;q=0, identity"}},
        {"headers": {}},
    ],
    ids=str,
)
def test_what_is_chosen_or_converted_or_not_asked_for_as_zstd_is_not_sent_so(
    relay: ServedRelay, asked: dict[str, Any]
) -> None:
    assert relay.relay.catalog.ids["shop.person"] == 1
    answer = relay.stream(
        checkPoint=Checkpoint.flexible().to_json(), **ASKED | {"headers": ZSTD} | asked
    )
    assert answer.status == 200
    assert answer.headers["Content-Encoding"] is None
    assert answer.body


def test_the_ring_answers_a_client_of_zstd_as_any_other(relay: ServedRelay) -> None:
    begin = Checkpoint.at(LAST - 20).to_json()
    plain = relay.stream(checkPoint=begin, **ASKED)
    asked_zstd = relay.stream(checkPoint=begin, headers=ZSTD, **ASKED)
    assert asked_zstd.body == plain.body
    assert asked_zstd.headers["Content-Encoding"] is None


def test_an_end_is_kept_to_in_whole_frames(relay: ServedRelay) -> None:
    begin = Checkpoint.flexible()
    for until in (3, 700, 1200):
        plain, _ = read_until(relay, begin, until, {})
        packed, _ = read_until(relay, begin, until, ZSTD)
        assert packed == plain
        assert peek(split_events(packed)[-1]).scn == until


def read_until(
    relay: ServedRelay, begin: Checkpoint, until: int, headers: dict[str, str]
) -> tuple[bytes, int]:
    data, scn, answers = b"", -1, 0
    while scn < until:
        checkpoint = (begin if scn < 0 else Checkpoint.at(scn)).to_json()
        answer = relay.stream(checkPoint=checkpoint, headers=headers, untilScn=until, **ASKED)
        data += events_of(answer)
        scn, answers = int(answer.headers["x-databus-resume"].split(",")[0]), answers + 1
    return data, answers


@pytest.mark.parametrize("client", ["curl", "zstd"])
def test_other_programs_decode_it(relay: ServedRelay, tmp_path: Path, client: str) -> None:
    asked = {
        "sources": "shop.person,shop.orders",
        "checkPoint": Checkpoint.flexible().to_json(),
        "maxev": 2,
        "truncate": "true",
    } | ASKED
    plain = relay.stream(**asked).body
    url, body = f"{relay.url}/stream?{urllib.parse.urlencode(asked)}", tmp_path / "body"
    if client == "curl":
        command = ["curl", "-sS", "-H", "Accept-Encoding: zstd", "--compressed", url]
        decoded = subprocess.run(command, capture_output=True, check=True).stdout
    else:
        body.write_bytes(relay.stream(headers=ZSTD, **asked).body)
        decoded = subprocess.run(["zstd", "-dc", body], capture_output=True, check=True).stdout
    assert 0 < len(decoded) <= len(plain)
    assert decoded == plain[: len(decoded)]


def test_a_client_that_goes_in_the_middle_of_an_answer_does_no_harm(relay: ServedRelay) -> None:
    target = urllib.parse.urlencode(
        {
            "sources": "shop.person,shop.orders",
            "checkPoint": Checkpoint.flexible().to_json(),
            "maxev": 2,
            "truncate": "true",
        }
        | ASKED
    )
    for _ in range(20):
        with connect(relay.url) as sock:
            head = f"GET /stream?{target} HTTP/1.1\r\nHost: relay\r\nAccept-Encoding: zstd\r\n\r\n"
            sock.sendall(head.encode())
            assert b"200 OK" in sock.recv(1000)
    plain, _ = read_all(relay, Checkpoint.flexible())
    assert read_all(relay, Checkpoint.flexible(), headers=ZSTD)[0] == plain


def test_a_client_and_sparks_reader_ask_for_it_and_miss_nothing(
    relay: ServedRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    read_frame = segments.read_frame

    def counting(*arguments: Any) -> Any:
        decoded.append(1)
        return read_frame(*arguments)

    monkeypatch.setattr(reader, "read_frame", counting)
    seen: list[int] = []
    client = DatabusClient([relay.url], start="scn:1")
    client.on("shop.person", "shop.orders")(lambda event: seen.append(event.scn))
    client.start()
    wait_until(lambda: bool(seen) and seen[-1] == LAST)
    client.stop()
    by_client = len(decoded)
    plain, _ = read_all(relay, Checkpoint.at(1))
    wanted = [peek(event) for event in split_events(plain)]
    assert seen == [event.scn for event in wanted if event.src_id >= 0]
    assert by_client < (len(decoded) - by_client) / 3  # the relay decoded nearly none of them

    server = Server(relay.url)
    parameters = {
        "sources": "shop.person,shop.orders",
        "checkPoint": Checkpoint.flexible().to_json(),
        "maxev": "2",
        "truncate": "true",
    } | {name: str(value) for name, value in ASKED.items()}
    answer = server.get("/stream", parameters)
    server.close()
    assert answer.headers["content-encoding"] == "zstd"
    assert bytes(answer.body) == read_all(relay, Checkpoint.flexible())[0][: len(answer.body)]


def test_a_damaged_frame_is_named_to_clients_as_if_nothing_were_compressed(tmp_path: Path) -> None:
    relay = ServedRelay(tmp_path, **settings(segment_bytes=64 << 10))
    seen: list[int] = []
    client = DatabusClient([relay.url], start="scn:1", back_off={"first_s": 0.01, "max_s": 0.02})
    client.on("shop.person", "shop.orders")(lambda event: seen.append(event.scn))
    try:
        fill(relay, range(1, LAST + 1))
        wait_for_log(relay, LAST)
        path = segment_paths(Path(relay_log(relay).folder))[1]
        damage_events(path, 0)
        client.start()
        problems = relay.relay.monitor.problems
        wait_until(lambda: any("damaged" in one.text for one in problems.newest_first()))
        (damage,) = {one.text for one in problems.newest_first()}
        before = [peek(event) for event in split_events(read_until_damage(relay))]
        # Of the damaged frame it may have whole windows as well, whose checksums are right.
        wanted = [event.scn for event in before if event.src_id >= 0 and event.scn > 1]
        wait_until(lambda: len(seen) >= len(wanted))
        assert seen[: len(wanted)] == wanted
        assert sorted(set(seen)) == list(range(2, seen[-1] + 1))
        assert path.name in damage
    finally:
        client.stop()
        relay.close()


def read_until_damage(relay: ServedRelay) -> bytes:
    """Return the events before the first window that cannot be read."""
    data, checkpoint = b"", Checkpoint.flexible()
    while True:
        answer = relay.stream(checkPoint=checkpoint.to_json(), **ASKED)
        if answer.status != 200:
            return data
        data += answer.body
        checkpoint = Checkpoint.at(int(answer.headers["x-databus-resume"].split(",")[0]))


def test_windows_that_come_after_history_are_followed(tmp_path: Path) -> None:
    relay = ServedRelay(tmp_path, **settings())
    seen: list[int] = []
    client = DatabusClient([relay.url], start="earliest")
    client.on("shop.person", "shop.orders")(lambda event: seen.append(event.scn))
    try:
        fill(relay, range(1, LAST + 1))
        wait_for_log(relay, LAST)
        client.start()
        for scn in range(LAST + 1, LAST + 200, 20):
            relay.source().put(*transactions(range(scn, scn + 20)))
        wait_until(lambda: bool(seen) and seen[-1] == LAST + 200)
    finally:
        client.stop()
        relay.close()
    assert sorted(set(seen)) == list(range(1, LAST + 201))
    assert seen == sorted(seen)
