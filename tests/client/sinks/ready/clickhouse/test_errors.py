"""The sink `clickhouse`: errors to wait for, refused rows, and those that say what to do."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from databus.client.sinks.errors import SinkError, SinkRefusedError, SinkUnavailableError
from databus.client.sinks.loading import sink_maker
from databus.client.sinks.ready.clickhouse.answers import check
from databus.client.sinks.running.feed import Feed
from databus.daemon.http.client import Response
from databus.schemas.errors import SettingsError
from databus.testing.recorder import Recorder
from tests.client.shop import wait_until
from tests.client.sinks.answering import answering
from tests.client.sinks.changes import ListedStream, plan_of, window
from tests.client.sinks.clickhouse_server import PrivateClickHouse
from tests.client.sinks.ready.clickhouse.targets import OPENING, new_sink, opened, put, rows, write
from tests.client.sinks.ready.sql.targets import Source

pytest_plugins = ["tests.client.sinks.clickhouse_fixtures"]

T = Source({"id": "int", "v": "int"})
ROW = T.insert(1, 1)
NO_HEADERS: Mapping[str, str] = {}


def told(
    code: int, status: int = 500, *, sent: int = 1, headers: Mapping[str, str] = NO_HEADERS
) -> SinkError:
    """Return the error that an answer of a server means."""
    text = f"Code: {code}. DB::Exception: what it says. (NAME)".encode()
    given = {"x-clickhouse-exception-code": str(code)} if code else {}
    answer = Response(status, "Status", {**given, **headers}, bytearray(text if code else b""))
    with pytest.raises(SinkError) as found:
        check(answer, "http://db:8123", [ROW] * sent)
    return found.value


@pytest.mark.parametrize(
    ("code", "status"),
    [
        *((code, 500) for code in (202, 210, 225, 241, 242, 243, 252, 285, 319, 425, 745, 999)),
        (159, 408),
        (209, 503),
        *((0, status) for status in (408, 429, 502, 503, 504)),
    ],
)
def test_a_server_that_is_busy_or_cannot_write_now_is_waited_for(code: int, status: int) -> None:
    error = told(code, status, headers={"retry-after": "7"})
    assert type(error) is SinkUnavailableError
    assert error.retry_after_s == 7
    assert "http://db:8123 answered" in str(error)


@pytest.mark.parametrize("code", [6, 26, 27, 33, 53, 69, 131, 321, 349, 469, 691])
def test_a_row_that_is_refused_is_named_if_it_was_sent_alone(code: int) -> None:
    alone, among = told(code, 400), told(code, 400, sent=2)
    assert isinstance(alone, SinkRefusedError)
    assert isinstance(among, SinkRefusedError)
    assert (alone.change, among.change) == (ROW, None)
    # Of a statement without rows no row is at fault.
    assert not isinstance(told(code, 400, sent=0), SinkRefusedError)


@pytest.mark.parametrize("code", [192, 193, 194, 195, 516])
def test_a_login_that_fails_is_no_rows_fault_and_says_what_to_check(code: int) -> None:
    error = told(code, 403)
    assert type(error) is SinkUnavailableError
    assert str(error).startswith("the login failed: check user and password_file: http://db")


@pytest.mark.parametrize("code", [164, 497])
def test_a_right_that_lacks_is_named(code: int) -> None:
    error = told(code, 403)
    assert type(error) is SinkUnavailableError
    assert "GRANT SELECT, INSERT, CREATE TABLE, ALTER on the database" in str(error)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (16, "a column is not there"),
        (60, "the table is not there"),
        (81, "create it, or set `data"),
    ],
)
def test_what_is_not_there_is_said(code: int, said: str) -> None:
    error = told(code, 404)
    assert type(error) is SinkError
    assert said in str(error)


def test_any_other_error_is_none_of_a_row_and_not_waited_for() -> None:
    assert type(told(1002)) is SinkError
    assert type(told(0, 404)) is SinkError
    assert type(told(0, 500)) is SinkError
    # As it is written behind a part of an answer.
    assert type(told(241, 200)) is SinkUnavailableError


def test_a_code_is_read_from_a_proxys_answer_without_the_header() -> None:
    answer = Response(500, "", {}, bytearray(b"Code: 252. DB::Exception: Too many parts"))
    with pytest.raises(SinkUnavailableError, match="Too many parts"):
        check(answer, "http://db:8123")


def test_a_server_that_is_away_is_unavailable() -> None:
    options = {"url": "http://127.0.0.1:1"}
    sink = sink_maker("clickhouse", options)()
    with pytest.raises(SinkUnavailableError, match="refused"):
        sink.open(OPENING)


def test_a_server_that_hangs_is_unavailable_after_the_timeout() -> None:
    with PrivateClickHouse() as server:
        server.clear()
        with opened(server, answer_timeout_s=0.5) as sink:
            with server.hanging(), pytest.raises(SinkUnavailableError, match="timed out"):
                put(sink, ROW)
            put(sink, ROW)
        assert rows(server) == [(1, 1)]


def test_a_connection_that_the_server_has_closed_because_it_was_idle_is_no_error(
    clickhouse: PrivateClickHouse,
) -> None:
    with opened(clickhouse) as sink:
        put(sink, ROW)
        time.sleep(3.5)
        put(sink, T.insert(2, 2))
    assert rows(clickhouse) == [(1, 1), (2, 2)]


def test_a_database_that_is_not_there_is_named(clickhouse: PrivateClickHouse) -> None:
    told = r"create it, or set `database`.*nowhere"
    with (
        closing(new_sink(clickhouse, database="nowhere")) as sink,
        pytest.raises(SinkError, match=told),
    ):
        sink.open(OPENING)


def test_a_login_is_sent_and_one_that_fails_says_so_without_the_password(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_text("open sésame\n")
    login: dict[str, Any] = {"user": "me", "password_file": str(file)}
    with PrivateClickHouse("me", "open sésame") as server:
        with opened(server, database="default", **login):
            pass
        file.write_text("wrong sésame\n")
        with (
            pytest.raises(SinkUnavailableError, match="the login failed") as failure,
            opened(server, database="default", **login),
        ):
            pass
        assert "sésame" not in str(failure.value)


def test_a_row_that_breaks_a_constraint_is_refused(clickhouse: PrivateClickHouse) -> None:
    write(clickhouse, [T.insert(0, 0)])
    clickhouse.run("ALTER TABLE shop.t ADD CONSTRAINT small CHECK v < 100")
    bad = T.insert(1, 100)
    for changes, named in (([bad], bad), ([bad, T.insert(2, 2)], None)):
        with pytest.raises(SinkRefusedError, match="Constraint `small`") as refused:
            write(clickhouse, changes)
        assert refused.value.change is named
    assert rows(clickhouse) == [(0, 0)]


@pytest.fixture
def constrained(clickhouse: PrivateClickHouse) -> PrivateClickHouse:
    """Give a table that takes no row 3."""
    clickhouse.run(
        "CREATE TABLE shop.t (id Int64, v Nullable(Int64), _databus_version UInt128, "
        "_databus_deleted UInt8, CONSTRAINT no_3 CHECK id <> 3) "
        "ENGINE = ReplacingMergeTree(_databus_version, _databus_deleted) ORDER BY id"
    )
    return clickhouse


def test_the_row_that_is_at_fault_is_found_and_all_others_are_written(
    constrained: PrivateClickHouse,
) -> None:
    stream = ListedStream(
        window(1, ("t", 1), ("t", 2), v=1),
        window(2, ("t", 3), ("t", 4), v=2),
        window(3, ("t", 5), v=3),
    )
    options = {"url": constrained.url, "database": "shop"}
    settings: dict[str, Any] = {"failures": {"refused": {"retries": 0, "then": "skip"}}}
    plan = plan_of(Recorder(), flush={"rows": 100, "seconds": 0.1}, **settings)
    feed = Feed(replace(plan, make=sink_maker("clickhouse", options)), stream)
    feed.start()
    try:
        wait_until(lambda: stream.stored[-1:] == [3])
    finally:
        feed.stop()
    assert rows(constrained, what="toInt32(id)") == [(1,), (2,), (4,), (5,)]


def test_an_answer_that_is_no_clickhouse_is_an_error() -> None:
    with answering(200, {}, "welcome") as (url, _):
        sink = sink_maker("clickhouse", {"url": url})()
        sink.open(OPENING)
        sink.write([ROW])
        with pytest.raises(SinkError, match="is no answer of ClickHouse"):
            sink.flush()
        sink.close()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"url": "https://me:secret@127.0.0.1"}, "url"),
        ({"url": "clickhouse://127.0.0.1"}, "url"),
        ({"database": ""}, "database"),
        ({"table": "{id}"}, "{id} is none of {source}, {schema} and {table}"),
        ({"mode": "scd2"}, "write mirror or append_history"),
        ({"mode": "mirrored"}, "mode"),
        ({"ddl": {"narrow_column": "apply"}}, "narrow_column"),
        ({"batch_bytes": 1}, "batch_bytes"),
        ({"password_file": "secret"}, "password_file.*set user, too"),
        ({"user": "me"}, "its password_file is missing"),
        ({"user": "me", "password_file": "missing"}, "password_file .*missing: .*No such file"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem) as refused:
        sink_maker("clickhouse", options)()
    assert "secret@" not in str(refused.value)
