"""The sink `redis`, on a real server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from databus.client.sinks.contract import Change, Opening, Position
from databus.client.sinks.errors import SinkError, SinkRefusedError, SinkUnavailableError
from databus.client.sinks.loading import sink_maker
from databus.client.sinks.ready.redis import sink as module
from databus.client.sinks.ready.redis.sink import RedisSink
from databus.client.sinks.rules.changes import TableRule, changes_of
from databus.demo.processes import free_port
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import SettingsError
from databus.testing import change, make_window
from tests.client.sinks.changes import made
from tests.client.sinks.redis_server import PrivateRedis
from tests.databus.daemon.certificates import make_certificates

pytest_plugins = ["tests.client.sinks.redis_fixtures"]
pytestmark = pytest.mark.redis

STATE = "databus:test:shop"


@pytest.fixture
def open_sink(redis: Any, redis_server: PrivateRedis) -> Iterator[Any]:
    """Return what opens a sink on the emptied server."""
    sinks: list[RedisSink] = []

    def opened(at: Position | None = None, **options: Any) -> tuple[RedisSink, Position | None]:
        given = {"url": redis_server.url, "timeout_s": 10, **options}
        sink = RedisSink(RedisSink.Options.model_validate(given))
        sinks.append(sink)
        return sink, sink.open(Opening("test", "shop", at))

    yield opened
    for sink in sinks:
        sink.close()


def at(scn: int, source: str = "shop") -> Position:
    return Position(source, Checkpoint.at(scn))


def put(sink: RedisSink, *changes: Change) -> None:
    """Write changes as a transaction each, and flush."""
    sink.write([replace(one, position=at(one.scn)) for one in changes])
    sink.flush()


def insert(scn: int, **values: Any) -> Change:
    return made("insert", scn, scn=scn, **values)


def keys(redis: Any) -> set[str]:
    """Return the keys of rows and messages."""
    return {name for name in redis.scan_iter() if not name.startswith("databus:")}


def test_a_row_is_a_string_of_json_until_it_is_deleted(redis: Any, open_sink: Any) -> None:
    sink, own = open_sink()
    assert own is None
    put(sink, insert(1, s="ä", price=Decimal("1.50")), insert(2, s=None))
    assert json.loads(redis.get("shop.orders:1")) == {"id": 1, "s": "ä", "price": "1.50"}
    assert json.loads(redis.get("shop.orders:2")) == {"id": 2, "s": None}
    put(sink, made("update", 1, scn=3, s="b"), made("delete", 2, scn=4))
    assert keys(redis) == {"shop.orders:1"}
    assert redis.zrange("databus:test:keys:shop.orders", 0, -1) == ["shop.orders:1"]
    assert json.loads(redis.get("shop.orders:1")) == {"id": 1, "s": "b"}
    assert redis.ttl("shop.orders:1") == -1


def test_a_row_is_a_hash_without_fields_for_nulls(
    redis: Any, redis_server: PrivateRedis, open_sink: Any
) -> None:
    sink, _ = open_sink(write="hash")
    when = datetime(2026, 11, 29, 4, 5)
    put(sink, insert(1, s="x", blob=b"\x00\xff", at=when, price=Decimal("1.50"), doc={"a": [1]}))
    with redis_server.client(decode_responses=False) as binary:
        assert binary.hget("shop.orders:1", "blob") == b"\x00\xff"
    redis.hdel("shop.orders:1", "blob")
    assert redis.hgetall("shop.orders:1") == {
        "id": "1",
        "s": "x",
        "at": "2026-11-29T04:05:00",
        "price": "1.50",
        "doc": '{"a":[1]}',
    }
    # Of an update whose other columns are not logged, they stay.
    put(sink, made("update", 1, scn=2, s=None, price=2))
    assert redis.hgetall("shop.orders:1") == {
        "id": "1",
        "at": "2026-11-29T04:05:00",
        "price": "2",
        "doc": '{"a":[1]}',
    }
    nothing = replace(insert(2), key={"a": None}, after={"a": None})
    put(sink, made("delete", 1, scn=3), nothing)  # there is no hash without fields
    assert keys(redis) == set()


def test_a_flush_and_its_position_are_one(redis: Any, open_sink: Any) -> None:
    sink, _ = open_sink()
    sink.write([replace(insert(1), position=at(1)), replace(insert(2), position=at(2))])
    assert keys(redis) == set()
    assert sink.flush() == at(2)
    assert sink.flush() == at(2)
    sink.write([replace(insert(3), position=at(3))])
    sink.close()  # without a flush
    again, own = open_sink(at(2))
    assert own == at(2)
    assert keys(redis) == {"shop.orders:1", "shop.orders:2"}
    assert again.open(Opening("test", "other")) is None  # each physical source has its own
    again.write([replace(insert(9), position=at(7, "other"))])
    again.flush()
    assert again.open(Opening("test", "other", at(7, "other"))) == at(7, "other")
    assert again.open(Opening("test", "shop", at(2))) == at(2)
    assert again.open(Opening("another", "shop")) is None


def test_large_flushes_are_cut_where_transactions_end(
    redis: Any, open_sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FLUSH_BYTES", 100)
    sink, _ = open_sink()
    sink.write([insert(1, s="x" * 200), replace(insert(2), position=at(2)), insert(3)])
    assert keys(redis) == {"shop.orders:1", "shop.orders:2"}
    assert redis.hget(STATE, "position") == at(2).to_json()
    monkeypatch.setattr(module, "_MOST_BYTES", 10)
    with pytest.raises(SinkRefusedError, match="bytes at once are more than Redis takes"):
        sink.flush()


def test_one_change_is_one_message_of_a_stream(redis: Any, open_sink: Any) -> None:
    sink, _ = open_sink(write="stream", key="{table}.{status}")
    changes = [insert(1, status="new"), insert(2, status="new")]
    put(sink, *changes, made("delete", 1, scn=3, before_status="new"))
    found = [fields for _, fields in redis.xrange("orders.new")]
    assert [(one["id"], one["op"]) for one in found] == [
        ("1:0", "insert"),
        ("2:0", "insert"),
        ("3:0", "delete"),
    ]
    value = json.loads(found[2]["value"])
    assert (value["key"], value["before"]) == ({"id": 1}, {"id": 1, "status": "new"})


def test_streams_and_lists_are_kept_short(redis: Any, open_sink: Any) -> None:
    sink, _ = open_sink(write="stream", max_length=100)
    put(sink, *(insert(scn) for scn in range(1, 1001)))
    assert 100 <= redis.xlen("shop.orders") < 1000
    redis.flushall()
    sink, _ = open_sink(write="list", max_length=2, ttl_s=60, value="{id}={s}")
    put(sink, *(insert(scn, s="v") for scn in range(1, 6)), made("delete", 5, scn=6, before_s="w"))
    assert redis.lrange("shop.orders", 0, -1) == ["5=v", "5=w"]
    assert 0 < redis.ttl("shop.orders") <= 60


def test_a_channel_gets_what_a_format_says(redis: Any, open_sink: Any) -> None:
    sink, _ = open_sink(write="pubsub", key="changes-of-{schema}", format="maxwell")
    with redis.pubsub() as heard:
        heard.subscribe("changes-of-shop")
        heard.get_message(timeout=5)
        put(sink, insert(1, s="x"), made("truncate", 0, scn=2))  # Maxwell has none of a TRUNCATE
        message = heard.get_message(timeout=5)
        assert message is not None
        found = json.loads(message["data"])
        assert (found["table"], found["data"]) == ("orders", {"id": 1, "s": "x"})
        assert heard.get_message(timeout=0.1) is None


def test_keys_of_rows_are_different_for_different_primary_keys(redis: Any, open_sink: Any) -> None:
    sink, _ = open_sink()
    pairs = [("a:b", "c"), ("a", "b:c"), ("a%3Ab", "c"), ("None", "c"), (None, "c")]
    for scn, (a, b) in enumerate(pairs, 1):
        key = {"a": a, "b": b}
        put(sink, replace(insert(scn), key=key, after=key))
    assert keys(redis) == {
        "shop.orders:a%3Ab:c",
        "shop.orders:a:b%3Ac",
        "shop.orders:a%253Ab:c",
        "shop.orders:None:c",
        "shop.orders:%NULL:c",
    }


def test_a_row_whose_template_gives_another_key_leaves_the_old_one(
    redis: Any, open_sink: Any
) -> None:
    sink, _ = open_sink(key="mail-{mail}")
    put(sink, insert(1, mail="a"), insert(2, mail="b"))
    update = made("update", 1, scn=3, mail="c", before_mail="a")
    put(sink, update, made("delete", 2, scn=4, before_mail="b"))
    assert keys(redis) == {"mail-c"}
    unknown = made("update", 1, scn=5, mail="d")  # the row before it was not logged
    with pytest.raises(SinkRefusedError, match="there is no column mail") as refused:
        put(sink, unknown)
    assert refused.value.change is not None


def test_a_truncate_removes_the_rows_of_its_table_alone(
    redis: Any, open_sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", 10)
    sink, _ = open_sink(key="{table}-{id}")
    rows = [insert(scn) for scn in range(1, 31)]
    others = [made("insert", scn, "shop.orders-old", scn=scn) for scn in range(31, 34)]
    put(sink, *rows, *others)
    put(sink, insert(34), made("truncate", 0, scn=35), insert(36))
    assert keys(redis) == {"orders-36", "orders-old-31", "orders-old-32", "orders-old-33"}
    assert redis.zrange("databus:test:keys:shop.orders", 0, -1) == ["orders-36"]
    refusing, own = open_sink(at(36), key="{table}-{id}", truncate="refuse")
    assert own == at(36)
    put(refusing, insert(37))
    assert redis.zcard("databus:test:keys:shop.orders") == 1
    with pytest.raises(SinkRefusedError, match=r"TRUNCATE of shop\.orders"):
        put(refusing, made("truncate", 0, scn=38))


def test_keys_expire_and_so_do_their_names(
    redis: Any, open_sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, _ = open_sink(ttl_s=1000)
    put(sink, insert(1))
    assert 0 < redis.ttl("shop.orders:1") <= 1000
    later = time.time() + 2000
    monkeypatch.setattr("databus.client.sinks.ready.redis.commands.time.time", lambda: later)
    put(sink, insert(2))
    assert redis.zrange("databus:test:keys:shop.orders", 0, -1) == ["shop.orders:2"]


def test_a_key_of_another_type_refuses_the_row_and_nothing_is_written(
    redis: Any, open_sink: Any
) -> None:
    redis.set("shop.orders:2", "mine")
    sink, _ = open_sink(write="hash")
    with pytest.raises(SinkRefusedError, match="is a string, and write = 'hash'") as refused:
        put(sink, insert(1, s="x"), insert(2, s="y"), insert(3))
    assert refused.value.change is not None
    assert refused.value.change.key == {"id": 2}
    assert keys(redis) == {"shop.orders:2"}
    assert open_sink(write="hash")[1] is None


def test_a_string_needs_the_whole_row(open_sink: Any) -> None:
    window = make_window(change("shop.orders", {"id": 1, "a": 2, "b": 3}, "insert"), scn=5)
    (whole,) = changes_of(window, lambda _: TableRule(), with_statements=False)
    sink, _ = open_sink()
    put(sink, whole)
    with pytest.raises(SinkRefusedError, match="has not logged b, and the sink"):
        put(sink, replace(whole, after={"id": 1, "a": 3}))


def test_a_second_process_makes_the_first_one_stop(
    redis: Any, open_sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = open_sink()
    put(first, insert(1))
    mine = module._PROCESS
    monkeypatch.setattr(module, "_PROCESS", "host:2:other")
    second, own = open_sink(at(1))
    assert own == at(1)
    monkeypatch.setattr(module, "_PROCESS", mine)
    with pytest.raises(SinkError, match="another process writes it: host:2:other"):
        put(first, insert(2))
    with pytest.raises(SinkError, match="another process writes it: host:2:other"):
        open_sink(at(1))  # as a retry does it
    monkeypatch.setattr(module, "_PROCESS", "host:2:other")
    put(second, insert(2))
    assert keys(redis) == {"shop.orders:1", "shop.orders:2"}


def test_a_server_that_has_lost_its_last_writes_is_read_for_again(
    redis: Any, open_sink: Any
) -> None:
    sink, _ = open_sink()
    put(sink, insert(1))
    put(sink, insert(2))
    redis.hset(STATE, "position", at(1).to_json())  # as a replica that becomes the master
    with pytest.raises(SinkUnavailableError, match="gone back to an earlier position"):
        put(sink, insert(3))
    assert open_sink(at(2))[1] == at(1)
    redis.flushall()
    with pytest.raises(SinkError, match="has lost its position"):
        open_sink(at(2))
    assert open_sink()[1] is None


def test_a_server_that_is_away_full_or_read_only_is_unavailable(
    redis: Any, open_sink: Any, redis_server: PrivateRedis
) -> None:
    with pytest.raises(SinkUnavailableError, match="refused"):
        open_sink(url="redis://127.0.0.1:1")
    sink, _ = open_sink(write="stream")
    put(sink, insert(1))
    redis.config_set("maxmemory", "1")
    try:
        with pytest.raises(SinkUnavailableError, match="OutOfMemory"):
            put(sink, insert(2))
    finally:
        redis.config_set("maxmemory", "0")
    redis.config_set("min-replicas-to-write", "1")
    try:
        with pytest.raises(SinkUnavailableError, match="NOREPLICAS"):
            sink.flush()
    finally:
        redis.config_set("min-replicas-to-write", "0")
    redis.replicaof("127.0.0.1", "1")
    try:
        with pytest.raises(SinkUnavailableError, match="ReadOnly"):
            sink.flush()
    finally:
        redis.replicaof("NO", "ONE")
    sink.flush()
    assert redis.xlen("shop.orders") == 2


def test_a_server_that_dies_is_waited_for_and_goes_on() -> None:
    with PrivateRedis() as server:
        options = RedisSink.Options.model_validate({"url": server.url, "write": "list"})
        with closing(RedisSink(options)) as sink:
            sink.open(Opening("test", "shop"))
            put(sink, insert(1))
            server.kill()
            with pytest.raises(SinkUnavailableError):
                put(sink, insert(2))
        server.start()
        with closing(RedisSink(options)) as again:
            assert again.open(Opening("test", "shop", at(1))) == at(1)
            put(again, insert(2))
        with server.client() as client:
            assert client.llen("shop.orders") == 2


def test_a_login_and_tls_are_options(tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "certificates", "elsewhere")
    tls = ("--tls-cert-file", str(made.cert), "--tls-key-file", str(made.key))
    with PrivateRedis(
        *("--requirepass", "right", "--tls-port", "0", "--tls-auth-clients", "no"), *tls
    ) as server:
        with server.client(password="right") as client:
            server_tls = _free_tls_port(client)
        file = tmp_path / "password"
        file.touch(0o600)
        options = {"url": f"rediss://127.0.0.1:{server_tls}/0", "password_file": str(file)}
        right = {**options, "ca_file": str(made.ca)}
        other_name = {**right, "url": f"rediss://localhost:{server_tls}/0"}
        for password, given, problem in (
            ("wrong-one", right, "invalid username-password pair"),
            ("right", options, "CERTIFICATE_VERIFY_FAILED"),
            ("right", other_name, "Hostname mismatch"),
            ("right", right, ""),
        ):
            file.write_text(password + "\n")
            with closing(RedisSink(RedisSink.Options.model_validate(given))) as sink:
                if not problem:
                    assert sink.open(Opening("test", "shop")) is None
                    continue
                with pytest.raises(SinkUnavailableError, match=problem) as failure:
                    sink.open(Opening("test", "shop"))
                assert "wrong-one" not in str(failure.value)


def _free_tls_port(client: Any) -> int:
    port = free_port()
    client.config_set("tls-port", port)
    return port


def test_a_cluster_is_refused() -> None:
    with PrivateRedis("--cluster-enabled", "yes", "--cluster-port", str(free_port())) as server:
        options = RedisSink.Options.model_validate({"url": server.url})
        with (
            closing(RedisSink(options)) as sink,
            pytest.raises(SinkError, match="is a Redis Cluster"),
        ):
            sink.open(Opening("test", "shop"))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"url": "http://127.0.0.1"}, "it begins with one of redis://"),
        ({"url": "redis://me:secret@127.0.0.1"}, "write it to password_file"),
        ({"url": "redis://127.0.0.1?db=1"}, "it has a query"),
        ({"key": "{a.b}"}, "write the names of columns"),
        ({"write": "hash", "format": "row"}, "row is the format of write = 'string'"),
        ({"write": "set"}, "write = 'set'"),
        ({"ca_file": "ca.pem"}, "it is for a url that begins with rediss://"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem) as refused:
        sink_maker("redis", options)
    assert "secret" not in str(refused.value)
