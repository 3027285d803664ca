"""A GTID is found behind the ring: in the log, with its index of GTIDs and without."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from databus.relay.log.reader import LogReader
from databus.relay.log.segment import read_segment, segment_paths
from databus.relay.sources.source import Origin, Transaction
from tests.relay.fakes import Answer, ServedRelay, insert
from tests.relay.log.gtids.windows import UUID, gtids_at, take_index_out
from tests.relay.log.test_served import LAST, relay_log, settings, wait_for_log

SEED = 20261127


def gtid_of(scn: int) -> str:
    """Return the GTID of a transaction; each number is near its place, but not in order."""
    number = 10_000 + scn // 16 * 16 + scn * 7 % 16
    return f"{UUID}:{number}" if scn % 5 == 0 else f"0-1-{number}"


def transactions(scns: range) -> Iterator[Transaction]:
    """Yield transactions; the rows of some look like the GTID of another one."""
    for scn in scns:
        other = gtid_of(scn % LAST + 1)
        texts = ["x" * 150, f"\x02{chr(2 * len(other))}{other}"]
        rows = [insert(scn * 10 + n, text) for n, text in enumerate(texts)]
        yield Transaction(scn, scn * 10**9, tuple(rows), Origin(gtid_of(scn), 1, "bin.000001", scn))


def filled(folder: Path) -> ServedRelay:
    served = ServedRelay(folder, **settings())
    served.source().put(*transactions(range(1, LAST + 1)))
    served.wait_for_scn(LAST)
    wait_for_log(served, LAST)
    return served


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[ServedRelay]:
    served = filled(tmp_path)
    yield served
    served.close()


def ask(relay: ServedRelay, gtid: str) -> Answer:
    return relay.get("/api/v1/sources/shop.person/position", at=f"gtid:{gtid}")


def check(relay: ServedRelay, scns: list[int]) -> None:
    """Search the GTIDs of transactions, and one that there never was."""
    for scn in scns:
        answer = ask(relay, gtid_of(scn))
        assert answer.status == 200, answer.body
        found: Any = json.loads(answer.body)
        assert (found["scn"], found["gtid"]) == (str(scn), gtid_of(scn))
    for gtid in ("0-1-9999", f"{UUID}:99999", "7-7-7"):
        answer = ask(relay, gtid)
        assert answer.status == 404
        assert f"it holds scn 1 to {LAST}" in json.loads(answer.body)["message"]


def sample(count: int) -> list[int]:
    return [1, LAST, *random.Random(SEED).sample(range(1, LAST + 1), count)]


def folder_of(relay: ServedRelay) -> Path:
    return Path(relay_log(relay).folder)


def reopened(relay: ServedRelay, folder: Path) -> ServedRelay:
    served = ServedRelay(folder, **settings())
    wait_for_log(served, LAST)
    return served


def test_gtids_are_found_wherever_they_are_and_few_frames_are_read(
    relay: ServedRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[int] = []
    load = LogReader._load

    def counted(reader: LogReader, position: int) -> Any:
        found = load(reader, position)
        if loaded[-1:] != [found[0]]:
            loaded.append(found[0])
        return found

    monkeypatch.setattr(LogReader, "_load", counted)
    scns = sample(40)
    check(relay, scns)
    assert len(set(loaded)) > 10
    assert len(loaded) <= 2 * len(scns)


def test_a_log_from_before_the_index_is_searched_whole(relay: ServedRelay, tmp_path: Path) -> None:
    folder = folder_of(relay)
    relay.close()
    take_index_out(segment_paths(folder)[:-2])
    again = reopened(relay, tmp_path)
    try:
        check(again, sample(3))
    finally:
        again.close()


@pytest.mark.parametrize("is_list", [False, True])
def test_a_damaged_index_is_named_and_its_gtids_are_found_all_the_same(
    relay: ServedRelay, tmp_path: Path, is_list: bool
) -> None:
    folder = folder_of(relay)
    relay.close()
    path = segment_paths(folder)[1]
    data, (begin, end) = bytearray(path.read_bytes()), gtids_at(path)
    data[end - 1 if is_list else begin] ^= 1
    path.write_bytes(data)
    header, last = read_segment(path).header, read_segment(path).end.scn
    again = reopened(relay, tmp_path)
    try:
        check(again, [header.first_scn, last])
        health = json.loads(again.get("/health").body)["physicalSources"]["shop"]
        warnings = json.dumps(health)
        assert "its index of GTIDs is damaged" in warnings
        assert path.name in warnings
    finally:
        again.close()


def test_a_damaged_frame_ends_the_search_with_its_name(relay: ServedRelay, tmp_path: Path) -> None:
    folder = folder_of(relay)
    relay.close()
    path = segment_paths(folder)[0]
    take_index_out([path])
    data = bytearray(path.read_bytes())
    data[4000] ^= 1
    path.write_bytes(data)
    again = reopened(relay, tmp_path)
    try:
        answer = ask(again, "0-1-9999")
        assert answer.status == 404
        assert f"{path.name} is damaged" in answer.body.decode()
    finally:
        again.close()
