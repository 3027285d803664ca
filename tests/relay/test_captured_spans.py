"""Consumers of a source that is added to a relay's settings, or comes back to them.

What happened while it was not listed is in no ring: nobody may continue across it unnoticed.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from databus.conf.named_places import ScnPlace
from databus.relay.captured_spans import load_first_scns
from databus.relay.ring.layout import GENERATION, NEVER_SEALED, SOURCES
from databus.relay.ring.ring import Ring
from databus.relay.sources.source import Transaction
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import RingError
from databus.schemas.stream.stream_reader import walk
from tests.relay.fakes import ORDERS, PERSON, Answer, ServedRelay, insert, transaction

NOT_FOUND = "com.linkedin.databus.core.ScnNotFoundException"
BOTH = ("shop.person", "shop.orders")
OWN = {"name": "com.example.Orders", "table": "shop.orders"}


@contextmanager
def relay_of(
    folder: Path, sources: Sequence[Any] = BOTH, *scns: int, ring_bytes: int = 1 << 18
) -> Iterator[ServedRelay]:
    """Run a relay with these sources; a transaction of both tables is committed at each SCN."""
    physical = {"name": "shop", "uri": "fake:", "sources": [*sources], "ring_bytes": ring_bytes}
    with closing(ServedRelay(folder, physical_sources=[physical])) as relay:
        if scns:
            put(relay, sources, *scns)
        yield relay


def put(relay: ServedRelay, sources: Sequence[Any], *scns: int) -> None:
    relay.put(*(change(scn, sources) for scn in scns))


def change(scn: int, sources: Sequence[Any]) -> Transaction:
    # A source of a database hands over rows of the tables that it watches.
    tables = [one["table"] if isinstance(one, dict) else one for one in sources]
    rows = [insert(scn, "x", table) for table in (PERSON, ORDERS) if table.source in tables]
    return transaction(scn, *rows)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The data of a relay with windows 1 to 8; orders were not captured from 4 to 6."""
    with relay_of(tmp_path, BOTH, 1, 2, 3):
        pass
    with relay_of(tmp_path, BOTH[:1], 4, 5, 6):
        pass
    with relay_of(tmp_path, BOTH, 7, 8):
        pass
    return tmp_path


def scns_of(answer: Answer) -> list[int]:
    assert answer.status == 200, answer.body
    return [event.scn for event in walk(answer.body) if event.is_eop]


def ask(relay: ServedRelay, scn: int, sources: str) -> Answer:
    return relay.stream(sources=sources, checkPoint=Checkpoint.at(scn).to_json())


def refuses(answer: Answer, oldest: int) -> bool:
    headers = answer.headers
    assert (answer.status, headers["x-dbus-error-cause"]) == (404, NOT_FOUND)
    assert headers["x-databus-oldest-scn"] == str(oldest)
    return True


def test_a_position_before_the_source_came_back_is_refused(folder: Path) -> None:
    with relay_of(folder) as relay:
        for scn in (0, 1, 3, 5):
            assert refuses(ask(relay, scn, "shop.orders"), 7)
        assert (
            b"shop.orders is captured only since it was listed" in ask(relay, 3, "shop.orders").body
        )
        assert scns_of(ask(relay, 6, "shop.orders")) == [7, 8]
        assert scns_of(ask(relay, 7, "shop.orders")) == [8]
        inside = Checkpoint.at(6).to_json().replace('"windowOffset":-1', '"windowOffset":1')
        assert refuses(relay.stream(sources="shop.orders", checkPoint=inside), 7)


def test_the_other_sources_are_served_as_before(folder: Path) -> None:
    with relay_of(folder) as relay:
        assert scns_of(ask(relay, 3, "shop.person")) == [4, 5, 6, 7, 8]
        assert scns_of(relay.stream(sources="shop.person")) == [*range(1, 9)]


def test_of_several_sources_the_newest_first_scn_counts(folder: Path) -> None:
    with relay_of(folder) as relay:
        assert refuses(ask(relay, 3, "shop.person,shop.orders"), 7)
        assert scns_of(ask(relay, 6, "shop.person,shop.orders")) == [7, 8]
        asked = '[{"logicalPartition":{"source":{"id":-1,"name":"*"}}}]'
        at = Checkpoint.at(3).to_json()
        assert refuses(relay.get("/stream", size=1 << 20, subs=asked, checkPoint=at), 7)


def test_the_oldest_that_is_held_is_after_the_first_scn(folder: Path) -> None:
    with relay_of(folder) as relay:
        answer = relay.stream(sources="shop.orders", size=200)
        assert scns_of(answer) == [7]
        assert answer.headers["x-databus-resume"] == "7,-1"
        assert scns_of(ask(relay, 7, "shop.orders")) == [8]


def test_a_measurement_begins_after_the_first_scn(folder: Path) -> None:
    with relay_of(folder) as relay:
        found = json.loads(relay.get("/measure", sources="shop.orders", rows=9).body)
        assert (found["fromScn"], found["scn"], found["rows"]) == (6, 8, 2)
        at = Checkpoint.at(3).to_json()
        assert refuses(relay.get("/measure", sources="shop.orders", checkPoint=at), 7)
        assert relay.get("/measure", sources="shop.person", checkPoint=at).status == 200


def test_a_measurement_since_a_time_without_capture_is_refused(folder: Path) -> None:
    with relay_of(folder) as relay:
        for since_ms in (1000, 5000):
            assert refuses(relay.get("/measure", sources="shop.orders", since=since_ms), 7)
        found = json.loads(relay.get("/measure", sources="shop.orders", since=8000).body)
        assert (found["fromScn"], found["rows"]) == (7, 1)


def test_a_new_source_has_no_older_changes_to_offer(tmp_path: Path) -> None:
    with relay_of(tmp_path, BOTH[:1], 1, 2, 3):
        pass
    with relay_of(tmp_path, BOTH, 4) as relay:
        assert refuses(ask(relay, 0, "shop.orders"), 4)
        assert scns_of(ask(relay, 3, "shop.orders")) == [4]


def test_a_table_that_goes_back_to_an_earlier_name_has_a_gap_under_it(tmp_path: Path) -> None:
    with relay_of(tmp_path, BOTH, 1, 2):
        pass
    with relay_of(tmp_path, (BOTH[0], OWN), 3, 4) as relay:
        assert refuses(ask(relay, 1, "com.example.Orders"), 3)
    with relay_of(tmp_path, BOTH, 5) as relay:
        assert refuses(ask(relay, 2, "shop.orders"), 5)
        assert scns_of(ask(relay, 2, "shop.person")) == [3, 4, 5]


def test_first_scns_survive_restarts(folder: Path) -> None:
    for scn in (9, 10):
        with relay_of(folder, BOTH, scn) as relay:
            assert refuses(ask(relay, 3, "shop.orders"), 7)
            assert scns_of(ask(relay, 6, "shop.orders"))[0] == 7


def test_a_consumer_of_the_newest_window_is_served_at_once(tmp_path: Path) -> None:
    with relay_of(tmp_path, BOTH[:1], 1, 2, 3):
        pass
    with relay_of(tmp_path) as relay:
        answer = relay.stream(sources="shop.orders", streamFromLatestScn="true")
        assert answer.headers["x-databus-resume"] == "3,-1"
        assert scns_of(ask(relay, 3, "shop.orders")) == []
        put(relay, BOTH, 4)
        assert scns_of(ask(relay, 3, "shop.orders")) == [4]


def test_a_ring_that_begins_anew_has_all_changes_of_its_sources(folder: Path) -> None:
    with relay_of(folder) as relay:
        relay.relay.control.restart(relay.relay.physical_source("shop"), ScnPlace(2))
        put(relay, BOTH, 3, 4)
        assert scns_of(ask(relay, 2, "shop.orders")) == [3, 4]


def test_a_ring_that_was_removed_takes_its_first_scns_along(folder: Path) -> None:
    for name in ("shop.ring", "shop.scn"):
        (folder / "data" / name).unlink()
    with relay_of(folder, BOTH, 2, 3) as relay:
        assert scns_of(ask(relay, 2, "shop.orders")) == [3]


def forget_sources(folder: Path, cells: tuple[int, int] = (0, 0)) -> None:
    """Let a ring's cells be as a version without first SCNs, or damage, leaves them."""
    with (folder / "data" / "shop.ring").open("r+b") as file:
        file.seek(SOURCES * 8)
        file.write(struct.pack("<2Q", *cells))


def file_of(folder: Path) -> Path:
    return folder / "data" / "shop.sources.json"


def serves_only_new(relay: ServedRelay, newest: int) -> bool:
    """Say whether positions before the newest window are refused, for every source."""
    for source in BOTH:
        assert refuses(ask(relay, newest - 1, source), newest + 1)
        assert scns_of(ask(relay, newest, source)) == []
    return True


def test_a_ring_of_an_earlier_version_is_served_as_it_was(folder: Path) -> None:
    file_of(folder).unlink()
    forget_sources(folder)
    with relay_of(folder) as relay:
        assert scns_of(ask(relay, 3, "shop.orders")) == [4, 5, 6, 7, 8]


def test_a_source_that_is_added_with_the_upgrade_has_a_first_scn(tmp_path: Path) -> None:
    with relay_of(tmp_path, BOTH[:1], 1, 2, 3):
        pass
    file_of(tmp_path).unlink()
    forget_sources(tmp_path)
    with relay_of(tmp_path, BOTH, 4) as relay:
        assert refuses(ask(relay, 0, "shop.orders"), 4)
        assert scns_of(ask(relay, 3, "shop.orders")) == [4]
        assert scns_of(ask(relay, 1, "shop.person")) == [2, 3, 4]


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff", b"[1] crc=00000000\n"])
def test_without_a_sound_file_all_sources_are_captured_since_now(
    content: bytes | None, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if content is None:
        file_of(folder).unlink()
    else:
        file_of(folder).write_bytes(content)
    with relay_of(folder) as relay:
        assert serves_only_new(relay, 8)
        put(relay, BOTH, 9)
    assert ("missing" if content is None else "damaged") in caplog.text
    assert "consumers of positions before scn 8 are refused, and bootstrap" in caplog.text
    with relay_of(folder) as relay:
        assert scns_of(ask(relay, 8, "shop.orders")) == [9]
        assert refuses(ask(relay, 7, "shop.orders"), 9)


def test_a_file_of_another_time_is_not_taken(tmp_path: Path) -> None:
    with relay_of(tmp_path, BOTH, 1, 2):
        pass
    earlier = file_of(tmp_path).read_bytes()
    with relay_of(tmp_path, BOTH[:1], 3, 4):
        pass
    with relay_of(tmp_path, BOTH, 5, 6):
        pass
    file_of(tmp_path).write_bytes(earlier)
    with relay_of(tmp_path) as relay:
        assert serves_only_new(relay, 6)


def test_a_version_without_first_scns_that_wrote_in_between_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with relay_of(tmp_path, BOTH, 1, 2):
        pass
    with closing(Ring.open(tmp_path / "data" / "shop.ring", "shop", 1 << 18)) as ring:
        # It does not know the cells that were handed on to this writer.
        ring._file.put(SOURCES, ring._file.cells[SOURCES] - (1 << 32))
    with relay_of(tmp_path) as relay:
        assert serves_only_new(relay, 2)
    assert "a version without a file of captured sources has written the ring" in caplog.text


def test_damaged_cells_are_noticed(folder: Path) -> None:
    forget_sources(folder, (1, 1))
    with relay_of(folder) as relay:
        assert serves_only_new(relay, 8)


def test_first_scns_survive_another_size_of_the_ring(folder: Path) -> None:
    with relay_of(folder, ring_bytes=1 << 17) as relay:
        assert refuses(ask(relay, 3, "shop.orders"), 7)
        assert scns_of(ask(relay, 3, "shop.person")) == [4, 5, 6, 7, 8]
    file_of(folder).unlink()
    with relay_of(folder, ring_bytes=1 << 18) as relay:
        assert serves_only_new(relay, 8)


def test_what_is_unknown_of_a_ring_stays_unknown_in_one_of_another_size(folder: Path) -> None:
    forget_sources(folder, (1, 1))
    with closing(Ring.open(folder / "data" / "shop.ring", "shop", 1 << 17)) as ring:
        assert ring.sources_crc is None
    with closing(Ring.open(folder / "data" / "shop.ring", "shop", 1 << 17)) as ring:
        assert ring.sources_crc is None


def test_a_kill_before_the_generation_begins_changes_nothing(folder: Path) -> None:
    with closing(Ring.open(folder / "data" / "shop.ring", "shop", 1 << 18)) as ring:
        crc = ring.sources_crc
        ring._file.cells[GENERATION] -= 1
    with closing(Ring.open(folder / "data" / "shop.ring", "shop", 1 << 18)) as ring:
        assert ring.sources_crc == crc not in (None, NEVER_SEALED)


def test_a_changed_digit_is_found(folder: Path) -> None:
    path = file_of(folder)
    content = path.read_bytes()
    assert b'"shop.orders":6' in content
    path.write_bytes(content.replace(b'"shop.orders":6', b'"shop.orders":4'))
    with pytest.raises(RingError, match="damaged"):
        load_first_scns(path)
