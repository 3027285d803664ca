"""A mistake of the settings: found by a check where it can be, and else the sink stops at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from databus.cli.main import main
from databus.client.sinks.loading import sink_maker
from databus.client.sinks.ready.clickhouse.sink import ClickHouseSink
from databus.client.sinks.ready.kafka import KafkaSink
from databus.client.sinks.ready.mongodb.sink import MongoSink
from databus.client.sinks.ready.redis.sink import RedisSink
from databus.client.sinks.ready.search.sink import SearchSink
from databus.client.sinks.ready.sql.sink import SqlSink
from databus.client.sinks.ready.webhook import WebhookSink
from databus.client.sinks.running.feed import Feed, SinkState
from databus.schemas.errors import SettingsError
from databus.testing.recorder import Recorder
from tests.client.shop import wait_until
from tests.client.sinks.changes import ListedStream, plan_of, window

NOWHERE = "127.0.0.1:1"
# Each option that names a file, with the others that it needs.
FILES: list[tuple[str, str, dict[str, Any]]] = [
    ("mongodb", "password_file", {"url": f"mongodb://copy@{NOWHERE}/"}),
    ("redis", "password_file", {"url": f"redis://{NOWHERE}/0"}),
    ("redis", "ca_file", {"url": f"rediss://{NOWHERE}/0"}),
    ("sql", "password_file", {"url": f"postgresql://copy@{NOWHERE}/x"}),
    ("webhook", "secret_file", {"url": f"http://{NOWHERE}/"}),
    ("elasticsearch", "password_file", {"url": f"http://{NOWHERE}", "user": "a"}),
    ("elasticsearch", "api_key_file", {"url": f"http://{NOWHERE}"}),
    ("elasticsearch", "tls_ca", {"url": f"https://{NOWHERE}"}),
    ("elasticsearch", "index_template", {"url": f"http://{NOWHERE}"}),
    ("kafka", "password_file", {"brokers": NOWHERE, "id": "a"}),
    ("clickhouse", "password_file", {"url": f"http://{NOWHERE}", "user": "a"}),
    ("clickhouse", "tls_ca", {"url": f"https://{NOWHERE}"}),
]
CLASSES = (
    ClickHouseSink,
    KafkaSink,
    MongoSink,
    RedisSink,
    SearchSink,
    SqlSink,
    WebhookSink,
)


def test_the_list_of_files_is_whole() -> None:
    named = {(one.Options.__name__, key) for one in CLASSES for key in one.Options.model_fields}
    files = {key for _, key in named if key.endswith(("_file", "_ca")) or key == "index_template"}
    assert {key for _, key, _ in FILES} == files


def stopped(kind: str, options: Mapping[str, Any]) -> str:
    """Run a sink until it stops; return why."""
    stream = ListedStream(window(1, ("t", 1)), sources=["shop.t"])
    failures = {"other": {"retries": 1000}}
    plan = replace(plan_of(Recorder(), failures=failures), make=sink_maker(kind, options))
    feed = Feed(plan, stream)
    feed.start()
    try:
        wait_until(lambda: feed.state is SinkState.STOPPED)
        trouble = feed.status.trouble
        assert trouble is not None
        assert (trouble.attempts, trouble.is_final) == (1, True)
        return trouble.problem
    finally:
        feed.stop()


@pytest.mark.parametrize(("kind", "key", "options"), FILES)
def test_a_file_that_is_not_there_stops_the_sink_at_once(
    tmp_path: Path, kind: str, key: str, options: dict[str, Any]
) -> None:
    found = stopped(kind, {**options, key: str(tmp_path / "gone")})
    assert f"{key} {tmp_path / 'gone'}" in found
    assert "No such file" in found


@pytest.mark.parametrize(
    ("kind", "key", "options"), [one for one in FILES if one[1].startswith(("pass", "sec", "api"))]
)
def test_a_secret_that_others_may_read_stops_the_sink_at_once(
    tmp_path: Path, kind: str, key: str, options: dict[str, Any]
) -> None:
    file = tmp_path / "secret"
    file.write_text("not-so-secret\n")
    file.chmod(0o644)
    found = stopped(kind, {**options, key: str(file)})
    assert found == f"SettingsError: {key} {file}: others may read it: chmod 600 {file}"


def test_settings_that_the_library_of_kafka_refuses_stop_the_sink_at_once(tmp_path: Path) -> None:
    client = {"security.protocol": "ssl", "ssl.ca.location": str(tmp_path / "gone")}
    found = stopped("kafka", {"brokers": NOWHERE, "id": "a", "client": client})
    assert "SettingsError: options.client: " in found
    assert "ssl.ca.location failed" in found


def test_after_the_file_is_mended_a_retry_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "key"
    recorder = Recorder()

    def make() -> Any:
        if not file.exists():
            raise SettingsError(f"password_file {file}: No such file or directory")
        return recorder.sink()

    stream = ListedStream(window(1, ("t", 1)))
    feed = Feed(replace(plan_of(recorder), make=make), stream)
    feed.start()
    try:
        wait_until(lambda: feed.state is SinkState.STOPPED)
        file.touch()
        feed.retry()
        wait_until(lambda: stream.stored == [1])
        assert feed.state is SinkState.RUNNING
    finally:
        feed.stop()


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (
            "sql",
            {"url": "sqlite:///a.db", "exactly_once": "no"},
            "exactly_once = 'no': write true or false, without quotes",
        ),
        ("sql", {"url": "sqlite:///a.db", "exactly_once": 0}, "write true or false"),
        ("kafka", {"brokers": NOWHERE, "id": "a", "tombstones": "off"}, "write true or false"),
        ("redis", {"ttl_s": "60"}, "ttl_s = '60': write a number, without quotes"),
        ("mongodb", {"exactly_once": "yes"}, "write true or false"),
        ("webhook", {"url": f"http://{NOWHERE}", "batch": True}, "write a number"),
        ("clickhouse", {"mode": "soft_delete"}, "write mirror or append_history"),
        ("clickhouse", {"databse": "shop"}, "databse"),
        ("print", {"colour": True}, "options of print"),
        ("tests.client.sinks.copy_sink:UpsertCopy", {"pat": "a"}, "options of tests.client.sinks"),
    ],
)
def test_an_option_of_another_type_or_name_is_found_by_the_check_and_at_the_start(
    tmp_path: Path, kind: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingsError) as raised:
        sink_maker(kind, options)
    assert said in str(raised.value)
    given = ", ".join(f"{key} = {_toml(value)}" for key, value in options.items())
    file = tmp_path / "sink.toml"
    file.write_text(
        f'data_dir = "{tmp_path / "data"}"\nrelays = ["http://{NOWHERE}"]\n'
        f'[[sinks]]\nname = "a"\nkind = "{kind}"\nsources = ["shop.*"]\n'
        f"isolate = false\noptions = {{ {given} }}\n"
    )
    for words in (["config", "check", str(file)], ["sink", "run", "-c", str(file)]):
        result = CliRunner().invoke(main, words)
        assert (result.exit_code, said in result.output) == (1, True), result.output


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool | int) else f'"{value}"'
