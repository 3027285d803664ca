"""The sink `mongodb`: which errors are waited for, which refuse a row, and which stop it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pymongo import InsertOne
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError

from databus.client.sinks.errors import SinkError, SinkRefusedError, SinkUnavailableError
from databus.client.sinks.loading import sink_maker
from databus.client.sinks.ready.mongodb.errors import is_collision, is_race
from databus.client.sinks.ready.mongodb.sink import MongoSink
from databus.client.sinks.running.feed import Feed
from databus.demo.processes import wait_until
from databus.schemas.errors import SettingsError
from databus.testing import change, make_window
from databus.testing.recorder import Recorder
from tests import PATIENCE_S
from tests.client.sinks.changes import ListedStream, plan_of, window
from tests.client.sinks.ready.mongodb.conftest import Target
from tests.client.sinks.ready.mongodb.mongo_server import PrivateMongo
from tests.client.sinks.ready.sql.targets import Source
from tests.databus.daemon.certificates import make_certificates

pytestmark = pytest.mark.mongodb

T = Source({"id": "int", "v": "int"})
NewMongo = Callable[..., PrivateMongo]


def test_a_server_that_is_away_is_waited_for(target: Target) -> None:
    nowhere = {"url": "mongodb://127.0.0.1:1", "timeout_s": 0.2}
    for options in ({}, {"exactly_once": True}):
        with pytest.raises(SinkUnavailableError, match=r"127\.0\.0\.1:1.*refused") as failure:
            target.put(T.insert(1, 1), **nowhere, **options)
        assert "Topology" not in str(failure.value)


def test_a_server_that_hangs_is_waited_for(target: Target) -> None:
    with target.opened(timeout_s=0.5) as sink:
        sink.write([T.insert(1, 1)])
        sink.flush()
        sink.write([T.insert(2, 1)])
        with target.server.hanging(), pytest.raises(SinkUnavailableError, match="timed out"):
            sink.flush()
    target.put(T.insert(2, 1))
    assert list(target.documents()) == [1, 2]


@pytest.mark.parametrize("options", [{}, {"exactly_once": True}])
def test_a_server_that_is_no_primary_is_waited_for(target: Target, options: dict[str, Any]) -> None:
    with target.opened(timeout_s=0.5, **options) as sink:
        sink.write([T.insert(1, 1)])
        sink.flush()
        target.client.admin.command("replSetStepDown", 2, force=True)
        try:
            sink.write([T.insert(2, 1)])
            with pytest.raises(SinkUnavailableError):
                sink.flush()
        finally:
            wait_until(target.server.serves, PATIENCE_S, "a primary")
    with target.opened(**options) as sink:
        sink.write([T.insert(2, 1)])
        sink.flush()
    assert list(target.documents()) == [1, 2]


@contextmanager
def failing(target: Target, data: dict[str, Any]) -> Iterator[None]:
    """Let the server answer updates with an error."""
    point = {"configureFailPoint": "failCommand"}
    given = {"failCommands": ["update", "commitTransaction"], **data}
    target.client.admin.command({**point, "mode": "alwaysOn", "data": given})
    try:
        yield
    finally:
        target.client.admin.command({**point, "mode": "off"})


@pytest.mark.parametrize("exactly_once", [False, True])
@pytest.mark.parametrize(
    ("data", "failure"),
    [
        ({"errorCode": 112}, SinkUnavailableError),  # WriteConflict
        ({"errorCode": 189}, SinkUnavailableError),  # PrimarySteppedDown
        ({"errorCode": 10107}, SinkUnavailableError),  # NotWritablePrimary
        ({"errorCode": 11602}, SinkUnavailableError),  # InterruptedDueToReplStateChange
        ({"errorCode": 50}, SinkUnavailableError),  # MaxTimeMSExpired
        ({"errorCode": 14031}, SinkUnavailableError),  # OutOfDiskSpace
        ({"closeConnection": True}, SinkUnavailableError),
        ({"errorCode": 13}, SinkUnavailableError),  # Unauthorized
        ({"errorCode": 73}, SinkRefusedError),  # InvalidNamespace
        ({"errorCode": 8}, SinkError),  # UnknownError
    ],
)
def test_errors_of_a_request_by_code(
    target: Target, data: dict[str, Any], failure: type[SinkError], exactly_once: bool
) -> None:
    with target.opened(exactly_once=exactly_once) as sink:
        sink.write([T.insert(1, 1)])
        with failing(target, data), pytest.raises(SinkError) as raised:
            sink.flush()
    is_position = exactly_once and failure is SinkRefusedError  # its update fails, and no row's
    assert type(raised.value) is (SinkError if is_position else failure)
    assert str(raised.value).startswith(f"mongodb://127.0.0.1:{target.server.port}")
    target.put(T.insert(1, 1), exactly_once=exactly_once)
    assert list(target.documents()) == [1]


def test_what_the_majority_has_not_confirmed_comes_again(target: Target) -> None:
    error = {"code": 64, "errmsg": "waiting for replication timed out"}
    with target.opened() as sink:
        sink.write([T.insert(1, 1)])
        with (
            failing(target, {"writeConcernError": error}),
            pytest.raises(SinkUnavailableError, match="waiting for replication timed out"),
        ):
            sink.flush()
        sink.flush()
    assert list(target.documents()) == [1]


def test_a_commit_of_which_nobody_knows_is_looked_up(target: Target) -> None:
    error = {"code": 64, "errmsg": "waiting for replication timed out"}
    with target.opened(exactly_once=True) as sink:
        sink.write([T.insert(1, 1, scn=3)])
        data = {"failCommands": ["commitTransaction"], "writeConcernError": error}
        with failing(target, data), pytest.raises(SinkUnavailableError):
            sink.flush()
    with target.opened(exactly_once=True) as again:
        reached = again.flush()
        assert reached is not None
        assert reached.scn == 3
    assert list(target.documents()) == [1]


def test_a_row_that_a_validation_refuses_is_named_and_the_others_are_written(
    target: Target,
) -> None:
    target.client.shop.create_collection("t", validator={"v": {"$gt": 5}})
    wrong = T.insert(2, 5)
    with pytest.raises(SinkRefusedError, match=r"validation \(code 121\).*\$gt") as refused:
        target.put(T.insert(1, 6), wrong, T.insert(3, 6))
    assert refused.value.change is wrong
    assert list(target.documents()) == [1, 3]
    with pytest.raises(SinkRefusedError, match="code 121") as refused:
        target.put(T.insert(4, 6), wrong, exactly_once=True)
    assert refused.value.change is wrong
    assert list(target.documents()) == [1, 3]


def test_a_row_that_a_unique_index_refuses_is_named_and_a_delete_makes_room(
    target: Target,
) -> None:
    target.client.shop.t.create_index("v", unique=True)
    target.put(T.insert(1, 1))
    double = T.insert(2, 1, scn=2)
    for options in ({}, {"exactly_once": True}):
        with pytest.raises(SinkRefusedError, match=r"E11000.*index: v_1") as refused:
            target.put(T.insert(3, 3), double, **options)
        assert refused.value.change is double
        assert target.documents()[1]["v"] == 1
    target.put(T.insert(2, 1, scn=3), T.delete(1, 1, scn=3))
    assert sorted(target.documents()) == [2, 3]


@pytest.mark.parametrize("exactly_once", [False, True])
def test_two_rows_that_swap_a_unique_value_are_both_written(
    target: Target, exactly_once: bool
) -> None:
    target.client.shop.t.create_index("v", unique=True, sparse=True)
    first = window(1, ("t", 1), v="a"), window(2, ("t", 2), v="b")
    swap = make_window(
        *(
            change("shop.t", {"id": key, "v": v}, "update", before={"id": key, "v": old})
            for key, old, v in ((1, "a", "c"), (2, "b", "a"), (1, "c", "b"))
        ),
        scn=3,
    )
    make = sink_maker("mongodb", {"url": target.server.url, "exactly_once": exactly_once})
    stream = ListedStream(*first, swap, sources=["shop.t"])
    feed = Feed(replace(plan_of(Recorder()), make=make), stream)
    feed.start()
    try:
        wait_until(lambda: stream.stored[-1:] == [3], PATIENCE_S, "the swap")
    finally:
        feed.stop()
    assert {key: one["v"] for key, one in target.documents().items()} == {1: "b", 2: "a"}


def test_a_view_and_a_name_in_another_case_refuse_the_row(target: Target) -> None:
    target.client.shop.create_collection("v", viewOn="t", pipeline=[])
    change = T.insert(1, 1)
    for options, problem in (({"collection": "v"}, "view"), ({"database": "SHOP"}, "case")):
        with pytest.raises(SinkRefusedError, match=problem) as refused:
            target.put(change, **options)
        assert refused.value.change is change


class Racing:
    """A collection in which another process inserts a document just before the first write."""

    def __init__(self, collection: Collection[dict[str, Any]], times: int) -> None:
        self._collection, self._times = collection, times

    def bulk_write(self, operations: list[Any], **options: Any) -> None:
        if self._times:
            self._times -= 1
            self._collection.insert_one({"_id": 1, "databus_scn": 1})
            try:
                self._collection.bulk_write([InsertOne({"_id": 1})], **options)
            finally:
                self._collection.delete_one({"_id": 1})
        self._collection.bulk_write(operations, **options)


def test_an_insert_that_another_process_made_just_then_is_made_again(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    with target.opened() as sink:
        racing = Racing(target.client.shop.t, 2)
        monkeypatch.setattr(sink, "_collection", lambda _namespace: racing)
        sink.write([T.insert(1, 7, scn=2)])
        sink.flush()
        assert target.documents()[1]["v"] == 7
        racing._times = 100
        sink.write([T.delete(1, 7, scn=3), T.insert(1, 7, scn=4)])
        target.client.shop.t.delete_many({})
        with pytest.raises(SinkUnavailableError, match="writes the same documents"):
            sink.flush()


def test_only_an_id_that_is_there_twice_is_a_race(target: Target) -> None:
    ids, values = target.client.shop.ids, target.client.shop.values
    values.create_index("v", unique=True)
    found = []
    for collection, rows in ((ids, [{"_id": 1}] * 2), (values, [{"v": 1}, {"v": 1}])):
        with pytest.raises(BulkWriteError) as failure:
            collection.bulk_write([InsertOne(dict(one)) for one in rows], ordered=False)
        (failed,) = failure.value.details["writeErrors"]
        found.append((is_race(failed), is_collision(failed)))
    assert found == [(True, False), (False, True)]


def test_a_single_server_takes_rows_and_refuses_exactly_once(new_mongo: NewMongo) -> None:
    with new_mongo(is_set=False) as server:
        target = Target(server)
        target.put(T.insert(1, 1))
        assert list(target.documents()) == [1]
        with pytest.raises(SinkError, match="exactly_once needs a replica set") as stopped:
            target.put(T.insert(2, 1), exactly_once=True)
        assert not isinstance(stopped.value, SinkUnavailableError)
        target.client.close()


def test_a_login_that_fails_is_no_rows_fault_and_says_what_to_do(
    new_mongo: NewMongo, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    with new_mongo("--auth", is_set=False) as server:
        # The first user may be made without a login, with roles of `admin`.
        with server.client() as client:
            client.admin.command("createUser", "root", pwd="root", roles=["root"])
        with server.client(username="root", password="root") as client:
            roles = [{"role": "readWrite", "db": name} for name in ("shop", "databus")]
            password = "pa#ss wörd ' %40:@/"
            client.admin.command("createUser", "me", pwd=password, roles=roles)
        options = {"url": f"mongodb://me@127.0.0.1:{server.port}/?authSource=admin"}
        target = Target(server)
        with pytest.raises(SinkUnavailableError, match="readWrite on this database, and url a u"):
            target.put(T.insert(1, 1))
        secret.write_text("geheim\n")
        with pytest.raises(SinkUnavailableError, match="check the user of `url`") as failure:
            target.put(T.insert(1, 1), password_file=str(secret), **options)
        assert "geheim" not in str(failure.value)
        secret.write_text(password + "\n")
        given = {"password_file": str(secret), **options}
        target.put(T.insert(1, 1), **given)
        with pytest.raises(SinkUnavailableError, match="needs the role readWrite"):
            target.put(T.insert(1, 1), database="elsewhere", **given)
        target.client.close()
        url = server.url
        with server.client(url, username="me", password=password) as client:
            assert [one["_id"] for one in client.shop.t.find()] == [1]


def test_tls_is_in_the_url_and_checks_the_name_of_the_server(
    new_mongo: NewMongo, tmp_path: Path
) -> None:
    made = make_certificates(tmp_path / "certificates", "elsewhere")
    both = tmp_path / "both.pem"
    both.touch(0o600)
    both.write_bytes(made.cert.read_bytes() + made.key.read_bytes())
    arguments = ["--tlsMode", "requireTLS", "--tlsCertificateKeyFile", str(both)]
    arguments += ["--tlsCAFile", str(made.ca), "--tlsAllowConnectionsWithoutCertificates"]
    query = f"tls=true&tlsCAFile={made.ca}"
    with new_mongo(*arguments, is_set=False, query=query) as server:
        target = Target(server)
        short = {"timeout_s": 0.5}
        for url, problem in (
            (f"mongodb://127.0.0.1:{server.port}/?tls=true", "CERTIFICATE_VERIFY_FAILED"),
            (f"mongodb://localhost:{server.port}/?{query}", "(?i)hostname mismatch"),
            (f"mongodb://127.0.0.1:{server.port}", "closed|reset"),
        ):
            with pytest.raises(SinkUnavailableError, match=problem):
                target.put(T.insert(1, 1), url=url, **short)
        target.put(T.insert(1, 1), url=server.url)
        assert list(target.documents()) == [1]
        target.client.close()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"url": "mongodb://me:secret@h/"}, "the password is in it"),
        ({"url": "mongodb+srv://me:secret@h.example/"}, "the password is in it"),
        (
            {"url": "mongodb://h/?tlsCertificateKeyFilePassword=secret"},
            "query has a password",
        ),
        ({"url": "http://h"}, "it begins with one of mongodb://"),
        ({"url": "mongodb://h/?w=0"}, "nobody would know"),
        ({"url": "mongodb://h/?colour=red"}, "colour"),
        ({"url": "mongodb://h:port"}, "(?i)port"),
        (
            {"url": "mongodb://h/?tls=true&tlsCAFile=/nowhere/ca.pem"},
            "(?i)tlscafile file is not readable",
        ),
        ({"collection": "{a!r}"}, "write the names of columns"),
        ({"scn_field": "a.b"}, "a name without dots"),
        ({"scn_field": "$a"}, "a name without dots"),
        ({"scn_field": ""}, "a name without dots"),
        ({"scn_field": "_id"}, "a name without dots"),
        ({"positions": "databus"}, "DATABASE.COLLECTION"),
        ({"dates": "local"}, "dates"),
        ({"url": "mongodb://me@h/"}, "(?i)password"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem) as refused:
        sink_maker("mongodb", options)().close()
    assert "secret@" not in str(refused.value)
    assert "=secret" not in str(refused.value)


def test_without_the_library_the_error_names_the_extra() -> None:
    code = """
import sys
sys.modules["pymongo"] = sys.modules["pymongo.client_session"] = None
from databus.client.sinks.loading import sink_maker
sink_maker("print", {})
try:
    sink_maker("mongodb", {})
except Exception as error:
    print(type(error).__name__, error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert re.match(r"SettingsError kind = 'mongodb': .*the extra `mongodb` of databus", run.stdout)


def test_what_the_url_says_of_writes_counts_and_the_rest_is_safe() -> None:
    safe, chosen = (
        sink_maker("mongodb", {"url": f"mongodb://127.0.0.1:1/?{query}"})()
        for query in ("", "w=2&journal=false&retryWrites=false&wTimeoutMS=7")
    )
    assert isinstance(safe, MongoSink)
    assert isinstance(chosen, MongoSink)
    try:
        concern = safe._client.write_concern.document
        assert concern == {"w": "majority", "j": True, "wtimeout": 30_000}
        assert safe._client.options.retry_writes
        assert chosen._client.write_concern.document == {"w": 2, "j": False, "wtimeout": 7}
        assert not chosen._client.options.retry_writes
    finally:
        safe.close()
        chosen.close()
