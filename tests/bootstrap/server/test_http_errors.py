"""What a bootstrap server answers to bad requests, and with a store that is damaged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from databus.schemas.checkpoint import Checkpoint
from tests.bootstrap.filled import PERSON, FilledStore, put, stored
from tests.bootstrap.serving import ServedStore
from tests.bootstrap.walking import catch_up_at, snapshot_at, split
from tests.relay.fakes import Answer, connect, wait_until

REQUEST_PACKAGE = "com.linkedin.databus2.core.container.request"
INVALID = f"{REQUEST_PACKAGE}.InvalidRequestParamValueException"
PROCESSING = f"{REQUEST_PACKAGE}.RequestProcessingException"
UNKNOWN_COMMAND = f"{REQUEST_PACKAGE}.UnknownCommandException"
TOO_OLD = f"{REQUEST_PACKAGE}.BootstrapDatabaseTooOldException"
TOO_YOUNG = f"{REQUEST_PACKAGE}.BootstrapDatabaseTooYoungException"
STORE_TROUBLE = "com.linkedin.databus.bootstrap.api.BootstrapProcessingException"
SNAPSHOT = snapshot_at(PERSON.source, 101).to_json()
OURS = {"User-Agent": "databus/9"}  # what this project's clients send


def error_of(answer: Answer) -> tuple[int, str]:
    """Return the status and the name of the error, or of its cause."""
    body = json.loads(answer.body)
    assert answer.headers["x-dbus-error"] == body["error"]
    assert answer.headers["x-dbus-error-message"]
    assert answer.headers.get("x-dbus-error-cause") == body.get("cause")
    if "cause" not in body:
        return answer.status, body["error"]
    assert body["error"] == PROCESSING
    return answer.status, body["cause"]


class TestBadInput:
    @pytest.fixture(autouse=True)
    def _stays_up(self, served: ServedStore) -> Iterator[None]:
        yield
        assert served.get("/admin").body == b"GOOD"
        assert served.page(checkPoint=SNAPSHOT).status == 200

    @pytest.mark.parametrize(
        ("changes", "status", "error", "says"),
        [
            ({"sources": "99"}, 404, "UnknownSourceException", "99"),
            (
                {"sources": "", "checkPoint": catch_up_at(101, 101).to_json()},
                400,
                INVALID,
                "required",
            ),
            ({"checkPoint": ""}, 400, INVALID, "required"),
            ({"checkPoint": "{nonsense"}, 400, INVALID, "JSON"),
            ({"checkPoint": "[1]"}, 400, INVALID, "object"),
            ({"checkPoint": '{"windowScn":"five"}'}, 400, INVALID, "checkpoint"),
            ({"checkPoint": "{" * 70_000}, 400, INVALID, "longer"),
            ({"checkPoint": Checkpoint.at(5).to_json()}, 400, INVALID, "mode"),
            ({"checkPoint": snapshot_at(PERSON.source, 10**9).to_json()}, 503, TOO_OLD, "newer"),
            ({"checkPoint": snapshot_at(PERSON.source, 5).to_json()}, 410, TOO_YOUNG, "older"),
            ({"checkPoint": catch_up_at(5, 101).to_json()}, 410, TOO_YOUNG, "goes back"),
            ({"batchSize": ""}, 400, INVALID, "required"),
            ({"batchSize": "-1"}, 400, INVALID, "batchSize"),
            ({"batchSize": "1"}, 400, INVALID, "batchSize"),
            ({"batchSize": "9" * 40}, 400, INVALID, "batchSize"),
            ({"batchSize": "many"}, 400, INVALID, "batchSize"),
            ({"output": "xml"}, 400, INVALID, "json_plain_value"),
            ({"maxev": "two"}, 400, INVALID, "maxev"),
            ({"untilRow": "-1"}, 400, INVALID, "untilRow"),
            ({"untilRow": "9" * 19}, 400, INVALID, "at most"),
            (
                {
                    "untilRow": "3",
                    "checkPoint": snapshot_at(PERSON.source, 101, offset=4).to_json(),
                },
                400,
                INVALID,
                "snapshot_offset 4",
            ),
            (
                {"untilRow": "3", "checkPoint": catch_up_at(101, 101).to_json(), "afterRow": "4"},
                400,
                INVALID,
                "not below afterRow 4",
            ),
            (
                {"sources": "1,2", "untilRow": "3", "checkPoint": catch_up_at(1, 1).to_json()},
                400,
                INVALID,
                "ids of its rows",
            ),
            ({"afterRow": "1"}, 400, INVALID, "goes on after the checkpoint's snapshot_offset 0"),
            ({"afterRow": "9" * 19}, 400, INVALID, "at most"),
            ({"filter": "{"}, 400, INVALID, "JSON"),
            ({"filter": '{"1":{"partitionType":"ROUND"}}'}, 400, INVALID, "ROUND"),
            ({"filter": '{"partitionType":"ROUND"}'}, 400, INVALID, "ROUND"),
            ({"filter": "x" * 70_000}, 400, INVALID, "max_filter_bytes"),
            ({"filter": "[" * 50_000}, 400, INVALID, "filter"),
        ],
    )
    def test_a_bad_page_is_refused_by_name(
        self, served: ServedStore, changes: dict[str, str], status: int, error: str, says: str
    ) -> None:
        answer = served.page(**{"checkPoint": SNAPSHOT, "headers": OURS} | changes)
        assert error_of(answer) == (status, error)
        assert says in json.loads(answer.body)["message"]

    @pytest.mark.parametrize(
        ("path", "parameters", "status", "error"),
        [
            ("/startSCN", {}, 400, INVALID),
            ("/startSCN", {"sources": "shop.person"}, 400, INVALID),
            ("/startSCN", {"sources": "shop.person", "checkPoint": "{"}, 400, INVALID),
            ("/startSCN", {"sources": "x", "checkPoint": SNAPSHOT}, 404, "UnknownSourceException"),
            ("/startSCN", {"sources": "crm.contact", "checkPoint": SNAPSHOT}, 503, TOO_OLD),
            (
                "/startSCN",
                {"sources": "1", "checkPoint": Checkpoint.at(4).to_json()},
                400,
                INVALID,
            ),
            (
                "/startSCN",
                {"sources": "1", "checkPoint": snapshot_at("", -1, since_scn=900).to_json()},
                503,
                TOO_OLD,
            ),
            (
                "/startSCN",
                {"sources": "1", "checkPoint": snapshot_at("", -1, since_scn=9).to_json()},
                410,
                TOO_YOUNG,
            ),
            ("/targetSCN", {}, 400, INVALID),
            ("/targetSCN", {"source": "1,2"}, 400, INVALID),
            ("/targetSCN", {"source": "shop.nothing"}, 404, "UnknownSourceException"),
            ("/measure", {}, 400, INVALID),
            ("/measure", {"sources": "1", "checkPoint": "{"}, 400, INVALID),
            ("/measure", {"sources": "1", "checkPoint": SNAPSHOT, "rows": "0"}, 400, INVALID),
            ("/measure", {"sources": "1", "checkPoint": SNAPSHOT, "bytes": "x"}, 400, INVALID),
            ("/measure", {"sources": "1", "checkPoint": SNAPSHOT, "filter": "{"}, 400, INVALID),
            ("/measure", {"sources": "2", "checkPoint": SNAPSHOT}, 400, INVALID),
            ("/measure", {"sources": "x", "checkPoint": SNAPSHOT}, 404, "UnknownSourceException"),
            (
                "/measure",
                {"sources": "1", "checkPoint": snapshot_at(PERSON.source, 10**9).to_json()},
                503,
                TOO_OLD,
            ),
            (
                "/measure",
                {"sources": "1", "checkPoint": catch_up_at(101, 10**9).to_json()},
                503,
                TOO_OLD,
            ),
            (
                "/measure",
                {"sources": "1", "checkPoint": catch_up_at(5, 101).to_json()},
                410,
                TOO_YOUNG,
            ),
            ("/register", {"sources": "77"}, 404, "UnknownSourceException"),
            ("/register", {"protocolVersion": "9"}, 400, INVALID),
            ("/stream", {"sources": "1"}, 404, UNKNOWN_COMMAND),
        ],
    )
    def test_a_bad_command_is_refused_by_name(
        self,
        served: ServedStore,
        path: str,
        parameters: dict[str, Any],
        status: int,
        error: str,
    ) -> None:
        assert error_of(served.get(path, OURS, **parameters)) == (status, error)

    def test_a_source_that_is_not_seeded_is_refused_with_how_far_it_is(
        self, served: ServedStore
    ) -> None:
        served.filled.store.reset_source(PERSON.source)
        answer = served.page(checkPoint=SNAPSHOT, headers=OURS)
        assert error_of(answer) == (503, TOO_OLD)
        assert "is new" in json.loads(answer.body)["message"]
        rows = [stored(1, key, 101) for key in range(3)]
        served.filled.seed(PERSON.source, rows, scn=101)

    @pytest.mark.parametrize("path", ["/startSCN", "/bootstrap"])
    def test_a_client_of_linkedin_is_not_suspended_by_a_source_that_is_not_seeded(
        self, served: ServedStore, path: str
    ) -> None:
        served.filled.store.reset_source(PERSON.source)
        asked = {"sources": "1", "checkPoint": SNAPSHOT, "batchSize": "10000"}
        spark = {"User-Agent": "databus-spark/9"}
        for headers, error in ((None, STORE_TROUBLE), (OURS, TOO_OLD), (spark, TOO_OLD)):
            answer = served.get(path, headers, **asked)
            assert error_of(answer) == (503, error)
            assert "is new" in json.loads(answer.body)["message"]
        assert served.pair.traffic.refusals == {"BootstrapDatabaseTooOldException": 3}
        rows = [stored(1, key, 101) for key in range(3)]
        served.filled.seed(PERSON.source, rows, scn=101)

    def test_a_first_event_larger_than_the_batch_is_told_by_its_size(
        self, served: ServedStore
    ) -> None:
        served.filled.apply(110, put(1, 1, 110, "x" * 3000))
        at = catch_up_at(101, 110).to_json()
        answer = served.page(checkPoint=at)
        assert answer.body == b""
        needed = int(answer.headers["x-dbus-pending-event-size"])
        whole = served.page(checkPoint=at, batchSize=needed)
        assert 3000 < len(whole.body) <= needed

    def test_a_request_larger_than_the_limit_is_dropped(self, served: ServedStore) -> None:
        with connect(served.url) as sock, pytest.raises((ConnectionResetError, BrokenPipeError)):
            sock.sendall(b"GET /bootstrap?filter=" + b"x" * 100_000_000)

    def test_garbage_disturbs_nobody(self, served: ServedStore) -> None:
        for piece in (b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"\x00" * 5000):
            with connect(served.url) as sock:
                sock.sendall(piece)
                sock.shutdown(1)
                try:
                    while sock.recv(4096):
                        pass
                except ConnectionResetError:
                    continue

    def test_too_many_connections_are_turned_away(self, tmp_path: Path) -> None:
        few = ServedStore(tmp_path / "few", http={"max_connections": 2})
        held = [connect(few.url) for _ in range(2)]
        try:
            for sock in held:
                sock.sendall(b"GET /admin HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert sock.recv(1 << 16).startswith(b"HTTP/1.1 200")
            assert few.get("/admin").status == 503
        finally:
            for sock in held:
                sock.close()
            few.close()


class TestDamage:
    def test_a_damaged_store_is_an_error_and_not_the_end(self, tmp_path: Path) -> None:
        served = ServedStore(tmp_path)
        (served.pair.paths["crm"]).write_bytes(b"no SQLite file at all" * 100)
        try:
            answer = served.get("/targetSCN", source="crm.contact")
            assert error_of(answer) == (500, STORE_TROUBLE)
            assert "crm.db" in json.loads(answer.body)["message"]
            assert served.page(checkPoint=SNAPSHOT).status == 200
            wait_until(lambda: "damaged" in served.get("/health").body.decode())
        finally:
            served.close()

    def test_a_store_that_was_made_anew_is_opened_anew(self, tmp_path: Path) -> None:
        served = ServedStore(tmp_path)
        try:
            _, at = split(served.page(checkPoint=SNAPSHOT, batchSize=1000).body)
            served.filled.close()
            for path in served.pair.paths["shop"].parent.glob("shop.db*"):
                path.unlink()
            served.filled = FilledStore(served.pair.paths["shop"])
            served.filled.seed_rows(PERSON.source, [1])
            served.filled.apply(150)
            assert error_of(served.page(checkPoint=at.to_json())) == (410, TOO_YOUNG)
            assert json.loads(served.get("/targetSCN", source="1").body) == "150"
        finally:
            served.close()
