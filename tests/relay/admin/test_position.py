"""`/api/v1/sources/NAME/position`: the SCN of a place that a person names."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest

from databus.conf.named_places import TimePlace
from databus.relay.sources.source import Change, Origin, Transaction
from databus.schemas.scn import BinlogPosition
from tests.relay.fakes import Answer, ServedRelay, insert, transaction

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
SECOND_NS = 1_000_000_000
AT_NS = 1_795_255_200 * SECOND_NS  # 2026-11-21T10:00:00Z


def scn_of(file_number: int, offset: int) -> int:
    return BinlogPosition(0, file_number, offset).to_scn()


def committed(file: int, end: int, at_s: int, gtid: str, *changes: Change) -> Transaction:
    """Return a transaction of 100 bytes of log, committed some seconds after ten o'clock."""
    origin = Origin(gtid, 1, f"bin.{file:06}", end - 100)
    at_ns = AT_NS + at_s * SECOND_NS
    return Transaction(scn_of(file, end), at_ns, changes or (insert(end),), origin)


@pytest.fixture
def log(relay: ServedRelay) -> ServedRelay:
    relay.put(
        committed(1, 200, 0, "0-1-1"),
        committed(1, 400, 10, "0-1-2"),
        committed(2, 300, 20, f"{UUID}:17"),
        # What looks like the next transaction's GTID is the value of a column.
        committed(2, 600, 15, "0-1-4", insert(1, "\x02\x0a0-1-5"), insert(2)),
        committed(2, 800, 30, "0-1-5"),
    )
    return relay


def ask(relay: ServedRelay, at: str, source: str = "shop.person") -> Answer:
    return relay.get(f"/api/v1/sources/{quote(source)}/position", at=at)


def position(relay: ServedRelay, at: str) -> Any:
    answer = ask(relay, at)
    assert answer.status == 200, answer.body
    return json.loads(answer.body)


@pytest.mark.parametrize(
    ("at", "scn"),
    [
        ("latest", scn_of(2, 800)),
        (f"scn:{scn_of(1, 400)}", scn_of(1, 400)),
        (str(scn_of(1, 400) + 5), scn_of(1, 400)),  # no window ends there
        ("binlog:bin.000001:400", scn_of(1, 400)),
        ("binlog:bin.000002:250", scn_of(1, 400)),  # inside the transaction up to 300
        ("binlog:bin.000002:4", scn_of(1, 400)),
        ("gtid:0-1-2", scn_of(1, 400)),
        (f"gtid:{UUID}:17", scn_of(2, 300)),
        ("gtid:0-1-5", scn_of(2, 800)),
        ("time:2026-11-21T10:00:10Z", scn_of(1, 200)),
        ("time:2026-11-21T10:00:11Z", scn_of(1, 400)),
        # First in the order of the log, although a later one was committed earlier.
        ("2026-11-21T10:00:17Z", scn_of(1, 400)),
        ("time:2026-11-21T10:00:30Z", scn_of(2, 600)),
    ],
)
def test_a_named_place_has_an_scn(log: ServedRelay, at: str, scn: int) -> None:
    assert position(log, at)["scn"] == str(scn)


def test_the_transaction_at_the_place_is_described(log: ServedRelay) -> None:
    assert position(log, "binlog:bin.000002:300") == {
        "source": "shop.person",
        "physicalSource": "shop",
        "at": "binlog:bin.000002:300",
        "scn": str(scn_of(2, 300)),
        "committedAt": AT_NS / SECOND_NS + 20,
        "gtid": f"{UUID}:17",
        "binlog": "bin.000002:300",
        "oldestScn": str(scn_of(1, 200)),
        "newestScn": str(scn_of(2, 800)),
        "rung": "ring",
        "isNearest": False,
    }


def test_earliest_is_before_the_oldest_window(log: ServedRelay) -> None:
    found = position(log, "earliest")
    assert found["scn"] is None or int(found["scn"]) < scn_of(1, 200)


def test_nothing_is_known_of_an_empty_ring(relay: ServedRelay) -> None:
    found = position(relay, "latest")
    assert (found["committedAt"], found["gtid"], found["newestScn"]) == (None, None, None)


@pytest.mark.parametrize(
    ("at", "status", "error"),
    [
        (str(scn_of(2, 801)), 404, "ScnAheadException"),
        ("binlog:bin.000003:4", 404, "ScnAheadException"),
        ("time:2026-11-21T10:00:31Z", 404, "ScnAheadException"),
        ("gtid:0-1-3", 404, "PlaceNotFoundException"),
        ("beginning", 400, "InvalidRequestParamValueException"),
        ("gtid:0-1", 400, "InvalidRequestParamValueException"),
        ("yesterday", 400, "InvalidRequestParamValueException"),
        # Names of files that this log does not have.
        ("binlog:other.000001:400", 404, "PlaceNotFoundException"),
        ("binlog:bin.1:400", 404, "PlaceNotFoundException"),
        # Before the oldest window, of which the one before is not known.
        ("time:2026-11-21T09:00:00Z", 404, "ScnNotFoundException"),
    ],
)
def test_each_place_that_is_not_there_has_its_own_error(
    log: ServedRelay, at: str, status: int, error: str
) -> None:
    answer = ask(log, at)
    told = json.loads(answer.body)
    named = told.get("cause") or told["error"]
    assert (answer.status, named.rpartition(".")[2]) == (status, error)


@pytest.mark.parametrize(
    ("at", "scn"),
    [
        ("time:2026-11-21T10:00:31Z", scn_of(2, 800)),
        (str(scn_of(2, 801)), scn_of(2, 800)),
        ("time:2026-11-21T09:00:00Z", None),  # the window before the oldest is not known
        ("binlog:bin.000002:300", scn_of(2, 300)),
    ],
)
def test_the_nearest_end_is_found_for_who_asks_for_it(
    log: ServedRelay, at: str, scn: int | None
) -> None:
    answer = log.get("/api/v1/sources/shop.person/position", at=at, nearest="true")
    found = json.loads(answer.body)
    assert found["scn"] == (None if scn is None else str(scn))
    assert found["isNearest"] == (scn != scn_of(2, 300))


def test_what_never_was_has_nothing_nearest_to_it(log: ServedRelay) -> None:
    for at, status in (("gtid:0-1-3", 404), ("binlog:other.000001:4", 404), ("beginning", 400)):
        answer = log.get("/api/v1/sources/shop.person/position", at=at, nearest="true")
        assert answer.status == status, answer.body


def test_a_time_is_found_in_the_order_of_the_log_however_times_jump(relay: ServedRelay) -> None:
    hours = 3600
    times = [0, 10 * hours, 3, 20 * hours, 5, 30 * hours, 7]
    ends = [200 * number for number in range(1, len(times) + 1)]
    relay.put(*(committed(1, e, at, f"0-1-{e}") for e, at in zip(ends, times, strict=True)))
    for at, wanted in ((1, 200), (10 * hours, 200), (10 * hours + 1, 600), (25 * hours, 1000)):
        assert position(relay, str(TimePlace(AT_NS + at * SECOND_NS)))["scn"] == str(
            scn_of(1, wanted)
        )


def test_the_place_where_capture_began_has_no_time(relay: ServedRelay) -> None:
    begin = Transaction(scn_of(1, 100), AT_NS, (), Origin())
    relay.put(begin, committed(1, 200, 10, "0-1-1"), committed(1, 400, 20, "0-1-2"))
    at = "time:2026-11-21T10:00:10Z"
    assert ask(relay, at).status == 404  # more may have been committed then, before capture
    assert position(relay, "time:2026-11-21T10:00:20Z")["scn"] == str(scn_of(1, 200))


def test_a_source_whose_log_has_other_files_has_no_binlog(relay: ServedRelay) -> None:
    relay.put(transaction(10, insert(1)))
    answer = ask(relay, "binlog:bin.000001:4")
    assert "shop has no binlog" in json.loads(answer.body)["message"]
    assert position(relay, "10")["binlog"] is None


def test_the_newest_first_scn_of_all_sources_counts(relay: ServedRelay) -> None:
    assert relay.get("/api/v1/sources/1/position", at="latest", others="2").status == 200
    assert relay.get("/api/v1/sources/1/position", at="latest", others="99").status == 404


def test_an_unknown_source_is_refused(log: ServedRelay) -> None:
    assert ask(log, "latest", "shop.nothing").status == 404


def test_what_was_overwritten_is_gone(relay: ServedRelay) -> None:
    reader = relay.relay.physical_sources["shop"].reader
    file = 0
    while reader.prev_scn < scn_of(1, 400):
        file += 1
        numbers = range(1, 50)
        relay.put(
            *(committed(file, 200 * n, file, f"0-1-{n}", insert(n, "y" * 900)) for n in numbers)
        )
    answer = ask(relay, "binlog:bin.000001:200")
    error = json.loads(answer.body)
    assert (answer.status, error["cause"].rpartition(".")[2]) == (404, "ScnNotFoundException")
