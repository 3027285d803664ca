"""A client that starts at a time, a transaction or a place in a binlog, with a real relay."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from databus.client.client import DatabusClient
from databus.relay.sources.source import Origin, Transaction
from databus.schemas.errors import PlaceNotFoundError, SettingsError
from tests.client.fake_relay import FakeRelay, status
from tests.relay.fakes import PERSON, ServedRelay, insert


def committed(end: int) -> Transaction:
    """Return a transaction that ends at `end` bytes of the first binlog, committed at `end` s."""
    origin = Origin(f"0-1-{end}", 1, "bin.000000", end - 5)
    return Transaction(end, end * 1_000_000_000, (insert(end),), origin)


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[ServedRelay]:
    served = ServedRelay(tmp_path / "relay")
    served.put(*map(committed, (10, 20, 30, 40)))
    yield served
    served.close()


def read(relay: ServedRelay, count: int, **options: Any) -> list[int]:
    with DatabusClient([relay.url], **options) as client:
        return [window.scn for window in islice(client.windows(PERSON.source), count)]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("time:1970-01-01T00:00:25Z", [30, 40]),
        ("1970-01-01T00:00:20Z", [20, 30, 40]),
        ("binlog:bin.000000:30", [40]),
        ("binlog:bin.000000:27", [30, 40]),  # inside of it
        ("gtid:0-1-20", [30, 40]),
        ("scn:30", [40]),
        (30, [40]),
    ],
)
def test_a_client_reads_from_a_named_place(
    relay: ServedRelay, start: str | int, expected: list[int]
) -> None:
    assert read(relay, len(expected), start=start) == expected


def test_the_place_is_kept_in_the_checkpoint(relay: ServedRelay, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    assert read(relay, 2, start="binlog:bin.000000:20", checkpoint_dir=folder) == [30, 40]
    # Nobody said that the rows of the last one were read.
    assert read(relay, 1, start="earliest", checkpoint_dir=folder) == [40]


def test_a_time_before_the_oldest_window_is_refused_and_not_taken_for_it(
    relay: ServedRelay,
) -> None:
    with pytest.raises(PlaceNotFoundError, match="none holds it; the oldest window held is 10"):
        read(relay, 1, start="time:1970-01-01T00:00:01Z")


def test_a_relay_that_finds_no_places_is_named() -> None:
    with FakeRelay() as relay, DatabusClient([relay.url], start="time:2026-11-21") as client:
        relay.script.append(status(404))
        with pytest.raises(PlaceNotFoundError, match="another project or version, which cannot"):
            next(client.windows("shop.orders"))


def test_a_transaction_that_the_relay_does_not_have_ends_the_client(
    relay: ServedRelay, caplog: pytest.LogCaptureFixture
) -> None:
    says = r"no window that is held has GTID 0-1-17"
    with (
        DatabusClient([relay.url], start="gtid:0-1-17") as client,
        pytest.raises(PlaceNotFoundError, match=says),
    ):
        next(client.windows(PERSON.source))
    logged = [record.getMessage() for record in caplog.records]
    assert any(re.search(says, line) for line in logged)
    assert not any("trying again" in line for line in logged)


def test_a_wrong_place_fails_at_construction() -> None:
    with pytest.raises(SettingsError, match=r"start = 'tomorrow'.*names no place"):
        DatabusClient(["http://127.0.0.1:1"], start="tomorrow")
