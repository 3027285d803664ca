"""Reading a range: what a relay's answer may say of where to go on, and which refusals end it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace

import pytest

from databus.client.spark.arrow.event_rows import events_schema
from databus.client.spark.arrow.row_types import arrow_schema
from databus.client.spark.options import parse_options
from databus.client.spark.planning.ranges import LogRange, Range, SnapshotRange
from databus.client.spark.planning.server_pool import Answer, Server
from databus.client.spark.source.range_reader import RangeReader, check_resume
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import (
    BootstrapTooYoungError,
    DatabusError,
    NoAnswerError,
    ServerError,
    SettingsError,
)
from databus.schemas.protocol import Header

RELAY, OWN, OTHER = "http://relay:1", "http://own:1", "http://other:1"
ROWS = SnapshotRange("shop", "shop.orders", 10, 20, 100, 0, OWN, "store-1")
AWAY = ServerError(OWN, "cannot connect")
FORGOTTEN = BootstrapTooYoungError.answered(OWN, "the log begins later")
UNKNOWN = BootstrapTooYoungError.answered(OTHER, "the snapshot was begun on another store")


@pytest.mark.parametrize("resume", [(5, -1), (6, 0), (6, 3), (6, -1), (9, -1)])
def test_a_place_further_on_within_the_range_is_followed(resume: tuple[int, int]) -> None:
    check_resume(RELAY, resume, (5, -1), 9)


@pytest.mark.parametrize("resume", [(4, -1), (5, 0), (5, 3), (10, 0), (1 << 62, -1), (-1, -1)])
def test_a_place_behind_the_range_or_beyond_it_is_refused(resume: tuple[int, int]) -> None:
    with pytest.raises(ServerError, match=rf"{RELAY}.*resumes at {resume[0]}, {resume[1]}"):
        check_resume(RELAY, resume, (5, -1), 9)


@pytest.fixture
def refusals() -> dict[str, DatabusError]:
    """What each bootstrap server says of the rows."""
    return {}


@pytest.fixture
def reader(
    monkeypatch: pytest.MonkeyPatch, refusals: dict[str, DatabusError]
) -> Iterator[RangeReader]:
    def get(server: Server, path: str, parameters: Mapping[str, str], scn: int = -1) -> Answer:
        match path:
            case "/sources":
                found = [{"name": "shop.orders", "id": 1}]
            case "/register":
                found = [{"id": 1, "version": 1, "schema": '"string"'}]
            case "/stream":  # it has nothing new
                place = Checkpoint.from_json(parameters["checkPoint"])
                resume = f"{place.window_scn},{place.window_offset}"
                return Answer(server.url, {Header.RESUME: resume}, bytearray())
            case _:
                raise refusals[server.url]
        return Answer(server.url, {}, bytearray(json.dumps(found).encode()))

    monkeypatch.setattr(Server, "get", get)
    servers = {"relays": RELAY, "bootstrapServers": f"{OTHER},{OWN}"}
    given = {"sources": "shop.orders", "layout": "events", "retrySeconds": "0"}
    with closing(RangeReader(parse_options({**servers, **given}))) as reader:
        yield reader


def rows_of(reader: RangeReader, one: Range) -> int:
    return sum(batch.num_rows for batch in reader.read(one, arrow_schema(events_schema())))


@pytest.mark.parametrize("other", [UNKNOWN, ServerError(OTHER, "cannot connect")])
def test_a_snapshot_that_its_own_server_ends_is_read_anew_by_a_later_batch(
    reader: RangeReader, refusals: dict[str, DatabusError], other: DatabusError
) -> None:
    refusals |= {OWN: FORGOTTEN, OTHER: other}
    assert rows_of(reader, ROWS) == 0
    with pytest.raises(BootstrapTooYoungError, match="begins later"):
        rows_of(reader, replace(ROWS, is_final=True))


def test_rows_are_not_left_out_because_another_server_does_not_know_their_snapshot(
    reader: RangeReader, refusals: dict[str, DatabusError]
) -> None:
    refusals |= {OWN: AWAY, OTHER: UNKNOWN}
    with pytest.raises(BootstrapTooYoungError, match=r"cannot connect.*another store"):
        rows_of(reader, ROWS)


@pytest.mark.usefixtures("reader")
def test_rows_of_a_snapshot_without_bootstrap_servers_say_which_one_they_need() -> None:
    given = {"sources": "shop.orders", "relays": RELAY, "layout": "events"}
    with (
        closing(RangeReader(parse_options(given))) as alone,
        pytest.raises(SettingsError, match=rf"bootstrapServers, including {OWN}"),
    ):
        rows_of(alone, ROWS)


def test_a_relay_that_is_behind_a_planned_batch_is_as_one_that_does_not_answer(
    reader: RangeReader,
) -> None:
    """A job waits for it, and is restarted."""
    with pytest.raises(NoAnswerError, match=rf"{RELAY}.*nothing after scn 110 .* up to scn 120"):
        rows_of(reader, LogRange("shop", ("shop.orders",), 110, 120))
