"""Running sinks, seen and steered: the API on a real port, and the commands that ask it."""

from __future__ import annotations

import json
import stat
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from databus.cli.main import main
from databus.client.sinks.contract import Change
from databus.client.sinks.errors import SinkRefusedError, SinkUnavailableError
from databus.client.sinks.running.feed import SinkState
from databus.client.sinks.serving.process import SinkProcess
from databus.client.sinks.serving.service import NAME as ADDRESS, address_of, served
from databus.conf.loading import build_settings
from databus.conf.sink_settings import SinksSettings
from databus.demo.processes import python_module
from databus.demo.stage import Stage
from databus.testing import RelayForTests
from databus.testing.recorder import Recorder
from tests import PATIENCE_S
from tests.api_fuzz import check_answer, fuzz
from tests.client.shop import wait_until
from tests.client.sinks.serving.test_running_sink import keys, process_of, relay, running

__all__ = ["relay"]  # a fixture

SINKS = """
data_dir = "{folder}"
relays = ["{url}"]
{http}
[[sinks]]
name = "a"
kind = "print"
sources = ["shop.*"]
"""


class Steered:
    """A process of sinks `a`, or more, and the commands that are run about it."""

    def __init__(self, folder: Path, process: SinkProcess) -> None:
        self.folder, self.process = folder, process

    def sink(self, *words: str, input: str = "") -> str:
        result = databus(self.folder, *words, input=input)
        assert result.exit_code == 0, result.output
        return str(result.stdout)

    def show(self) -> Any:
        return json.loads(self.sink("show", "a", "--json"))

    def ask(self, path: str, method: str = "GET", body: bytes = b"{}") -> tuple[int, bytes]:
        return ask(address_of(self.folder), path, method, body)


def ask(url: str, path: str, method: str, body: bytes = b"{}") -> tuple[int, bytes]:
    data = body if method == "POST" else None
    request = urllib.request.Request(url + path, data=data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def databus(folder: Path, *words: str, input: str = "") -> Any:
    words = (*words, "-c", str(folder / "sink.toml"))
    return CliRunner().invoke(main, ["sink", *words], input=input)


def write_settings(folder: Path, url: str, http: str = "") -> None:
    (folder / "sink.toml").write_text(SINKS.format(folder=folder, url=url, http=http))


@contextmanager
def steered(
    folder: Path, relay: RelayForTests, recorder: Recorder, **more: Any
) -> Iterator[Steered]:
    http = more.pop("http", {})
    write_settings(
        folder, relay.url, "".join(["[http]\n", *(f"{k} = '{v}'\n" for k, v in http.items())])
    )
    process = process_of(folder, relay.url, {"a": recorder}, **more)
    settings = build_settings(
        {
            "data_dir": folder,
            "relays": [relay.url],
            "http": http,
            "sinks": [{"name": "a", "kind": "print", "sources": ["x.y"]}],
        },
        SinksSettings,
    )
    with served(process, settings), running(process):
        yield Steered(folder, process)


def refusing(*ids: int) -> Recorder:
    def refuse(changes: Sequence[Change]) -> None:
        for one in changes:
            if one.key["id"] in ids:
                raise SinkRefusedError("too long", one)

    return Recorder(fails=refuse)


def test_a_running_sink_shows_where_it_is_and_how_fast(
    relay: RelayForTests, tmp_path: Path
) -> None:
    recorder = Recorder()
    with steered(tmp_path, relay, recorder) as one:
        for key in range(10):
            relay.execute(f"INSERT INTO orders VALUES ({key}, 'tea')")
        wait_until(lambda: len(keys(recorder)) == 10)
        wait_until(lambda: one.show()["physicalSources"][0]["lagS"] is not None)
        wait_until(lambda: one.show()["physicalSources"][0]["lagWindows"] == 0)
        shown = one.show()
        (feed,) = shown.pop("physicalSources")
        assert (shown["name"], shown["state"], shown["deadLetters"]) == ("a", "running", 0)
        assert (feed["physicalSource"], feed["phase"], feed["rows"]) == ("shop", "online", 10)
        assert feed["server"] == relay.url
        assert int(feed["scn"]) >= max(change.scn for change in recorder.changes)
        assert feed["rowsPerS"] > 0
        assert feed["lagS"] < 30
        assert (feed["heldRows"], feed["heldWindows"], feed["failure"]) == (0, 0, None)
        text = one.sink("show", "a")
        assert "position    " + feed["scn"] in text
        assert "a  print  shop.*  running, lag " in one.sink("list")


def test_rows_that_wait_are_the_lag_and_what_is_not_known_is_null(
    relay: RelayForTests, tmp_path: Path
) -> None:
    def away(_changes: Sequence[Change]) -> None:
        raise SinkUnavailableError("the target is away")

    with steered(tmp_path, relay, Recorder(fails=away)) as one:
        relay.execute("INSERT INTO orders VALUES (1, 'tea')")
        wait_until(lambda: one.show()["state"] == "failing")
        wait_until(lambda: one.show()["physicalSources"][0]["lagS"] is not None)
        began_s = one.show()["physicalSources"][0]["lagS"]
        time.sleep(0.3)
        (feed,) = one.show()["physicalSources"]
        assert feed["lagS"] >= began_s + 0.2
        assert (feed["heldRows"], feed["heldWindows"]) == (1, 1)
        assert feed["scn"] is None or int(feed["scn"]) < feed_scn(feed)
        assert "the target is away" in one.sink("list")
        relay.stop()
        wait_until(lambda: one.show()["physicalSources"][0]["lagS"] is None, PATIENCE_S)
        assert one.show()["physicalSources"][0]["lagWindows"] is None
        assert "lag unknown" in one.sink("list")


def feed_scn(feed: Any) -> int:
    return int(feed["failure"]["row"]["scn"])


def test_a_pause_stops_writing_until_it_is_ended_and_outlives_the_process(
    relay: RelayForTests, tmp_path: Path
) -> None:
    recorder = Recorder()
    with steered(tmp_path, relay, recorder) as one:
        relay.execute("INSERT INTO orders VALUES (1, 'tea')")
        wait_until(lambda: len(keys(recorder)) == 1)
        assert one.sink("pause", "a").startswith("paused")
        relay.execute("INSERT INTO orders VALUES (2, 'tea')")
        time.sleep(0.5)
        assert len(keys(recorder)) == 1
    assert stat.S_IMODE((tmp_path / "paused.json").stat().st_mode) == 0o600
    assert "does not run, and is paused" in databus(tmp_path, "list").output
    with steered(tmp_path, relay, recorder) as one:
        wait_until(lambda: one.show()["state"] == "paused")
        time.sleep(0.5)
        assert len(keys(recorder)) == 1
        one.sink("resume", "a")
        wait_until(lambda: len(keys(recorder)) == 2)
    with steered(tmp_path, relay, recorder) as one:
        relay.execute("INSERT INTO orders VALUES (3, 'tea')")
        wait_until(lambda: len(keys(recorder)) == 3)


def test_skip_drops_the_row_that_was_shown_and_no_other(
    relay: RelayForTests, tmp_path: Path
) -> None:
    recorder = refusing(2, 4)
    with steered(tmp_path, relay, recorder) as one:
        for key in (1, 2, 3, 4, 5):
            relay.execute(f"INSERT INTO orders VALUES ({key}, 'tea')")
        wait_until(lambda: one.show()["state"] == "stopped")
        (feed,) = one.show()["physicalSources"]
        row = feed["failure"]["row"]
        assert (row["source"], row["key"], row["op"]) == ("shop.orders", {"id": 2}, "insert")
        assert feed["failure"]["isFinal"] is True
        said = databus(tmp_path, "skip", "a", input="n\n")
        assert said.exit_code == 1
        assert "a fails with insert shop.orders" in said.output
        wrong = json.dumps({"physicalSource": "shop", "id": "1:0"}).encode()
        status, body = one.ask("/api/v1/sinks/a/skip", "POST", wrong)
        assert (status, b"is not the row that fails now" in body) == (409, True)
        assert "skipped insert shop.orders" in one.sink("skip", "a", "--yes")
        wait_until(lambda: one.show()["physicalSources"][0]["failure"] is not None)
        wait_until(lambda: one.show()["physicalSources"][0]["failure"]["row"]["key"] == {"id": 4})
        again = json.dumps({"physicalSource": "shop", "id": row["id"]}).encode()
        assert one.ask("/api/v1/sinks/a/skip", "POST", again)[0] == 409
        one.sink("skip", "a", "--yes")
        wait_until(lambda: {key for _, key in keys(recorder)} == {1, 3, 5})
        wait_until(lambda: one.show()["state"] == "running")
        assert one.show()["physicalSources"][0]["skipped"] == 2
        nothing = databus(tmp_path, "skip", "a", "--yes")
        assert (nothing.exit_code, "no row fails" in nothing.output) == (1, True)


def test_retry_goes_on_after_an_error_that_has_stopped_a_sink(
    relay: RelayForTests, tmp_path: Path
) -> None:
    is_narrow = threading.Event()
    is_narrow.set()

    def refuse(changes: Sequence[Change]) -> None:
        if is_narrow.is_set():
            raise SinkRefusedError("too long", changes[0])

    recorder = Recorder(fails=refuse)
    with steered(tmp_path, relay, recorder) as one:
        relay.execute("INSERT INTO orders VALUES (1, 'tea')")
        wait_until(lambda: one.show()["state"] == "stopped")
        status, body = one.ask("/health")
        assert (status, json.loads(body)["status"]) == (503, "error")
        assert one.sink("retry", "a").startswith("stopped, ")  # it fails again
        is_narrow.clear()
        assert one.sink("retry", "a").startswith("running, ")
        wait_until(lambda: len(keys(recorder)) == 1)
        wait_until(lambda: one.ask("/health")[0] == 200)


def test_a_failing_row_is_shown_with_its_key_as_the_sink_gets_it(
    relay: RelayForTests, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("a secret of some length, 32 bytes at least\n")
    (tmp_path / "secret").chmod(0o600)
    masked = {
        "mask_key_file": tmp_path / "secret",
        "tables": [{"sources": ["shop.people"], "mask": {"id": "hash", "name": "redact"}}],
        "sources": ["shop.people"],
    }

    def refuse(changes: Sequence[Change]) -> None:
        raise SinkRefusedError("no", changes[0])

    with steered(tmp_path, relay, Recorder(fails=refuse), **masked) as one:
        relay.execute("INSERT INTO people VALUES (7654321, 'Ada Lovelace')")
        wait_until(lambda: one.show()["state"] == "stopped")
        text = json.dumps(one.show())
        assert "7654321" not in text
        assert "Ada" not in text
        assert one.show()["physicalSources"][0]["failure"]["row"]["key"]["id"]


def test_the_relay_is_told_that_a_sink_was_stopped_and_that_it_is_paused(
    relay: RelayForTests, tmp_path: Path
) -> None:
    def reported() -> Any:
        clients = json.loads(ask(relay.url, "/api/v1/clients", "GET")[1])["clients"]
        reports = [one["report"] for one in clients if one["report"]]
        return [one for one in reports if one["name"] == "sink a"]

    with steered(tmp_path, relay, refusing(1)) as one:
        wait_until(lambda: [found["state"] for found in reported()] == ["running"])
        relay.execute("INSERT INTO orders VALUES (1, 'tea')")
        wait_until(lambda: [found["state"] for found in reported()] == ["suspended"])
        (found,) = reported()
        assert "stopped: shop.orders at" in found["registrations"][0]["problem"]
        assert found["sink"] == {
            "kind": "recorder", "state": "stopped", "skipped": 0, "deadLetters": 0,
        }  # fmt: skip
        one.sink("skip", "a", "--yes")
        wait_until(lambda: [found["state"] for found in reported()] == ["running"])
        assert reported()[0]["registrations"][0]["problem"] == ""
        assert reported()[0]["sink"]["skipped"] == 1
        one.sink("pause", "a")
        wait_until(lambda: [found["state"] for found in reported()] == ["paused"])


def test_dead_letters_are_counted_also_those_of_earlier_processes(
    relay: RelayForTests, tmp_path: Path
) -> None:
    failures = {"refused": {"retries": 0, "then": "dead-letter"}}
    recorder = refusing(2, 3)
    with steered(tmp_path, relay, recorder, failures=failures) as one:
        for key in (1, 2):
            relay.execute(f"INSERT INTO orders VALUES ({key}, 'tea')")
        wait_until(lambda: one.show()["deadLetters"] == 1)
    with steered(tmp_path, relay, recorder, failures=failures) as one:
        assert one.show()["deadLetters"] == 1
        relay.execute("INSERT INTO orders VALUES (3, 'tea')")
        wait_until(lambda: one.show()["deadLetters"] == 2)
        assert "2 dead letters" in one.sink("list")
        values = metrics(one)
    assert values["databus_sink_dead_letters", "a"] == 2


def metrics(one: Steered) -> dict[tuple[str, str], float]:
    _, body = one.ask("/metrics")
    return {
        (sample.name, sample.labels.get("sink", "")): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
        if sample.labels.get("state", "running") == "running"
    }


def test_metrics_have_rows_lag_and_state(relay: RelayForTests, tmp_path: Path) -> None:
    recorder = Recorder()
    with steered(tmp_path, relay, recorder) as one:
        relay.execute("INSERT INTO orders VALUES (1, 'tea')")
        wait_until(lambda: metrics(one).get(("databus_sink_rows_total", "a")) == 1)
        wait_until(lambda: ("databus_sink_lag_seconds", "a") in metrics(one))
        assert metrics(one)["databus_sink_state", "a"] == 1


def test_strangers_get_no_more_than_their_role_and_wrong_requests_are_refused(
    relay: RelayForTests, tmp_path: Path
) -> None:
    for name in ("admins", "readers"):
        (tmp_path / name).write_text(f"a-token-of-the-{name}\n")
        (tmp_path / name).chmod(0o600)
    http = {"admin_tokens_file": tmp_path / "admins", "reader_tokens_file": tmp_path / "readers"}
    with steered(tmp_path, relay, Recorder(), http=http) as one:
        for path in ("/api/v1/sinks", "/metrics"):
            assert one.ask(path)[0] == 401
        assert one.ask("/api/v1/sinks/a/pause", "POST")[0] == 401
        assert json.loads(one.ask("/health")[1]) == {"service": "sinks", "status": "ok"}
        reader = ("--token-file", str(tmp_path / "readers"))
        wait_until(lambda: one.process.sinks[0].state is SinkState.RUNNING)
        assert "running" in one.sink("list", *reader)
        refused = databus(tmp_path, "pause", "a", *reader)
        assert (refused.exit_code, "this is for admins" in refused.output) == (1, True)
        assert one.sink("pause", "a").startswith("paused")  # with the token of the settings


def test_no_request_makes_the_api_fail(relay: RelayForTests, tmp_path: Path) -> None:
    with steered(tmp_path, relay, Recorder()) as one:
        assert one.ask("/api/v1/sinks/none")[0] == 404
        document = json.loads(one.ask("/api/v1/openapi.json")[1])
        check_answer(document, "GET", "/api/v1/sinks", *one.ask("/api/v1/sinks"))
        assert fuzz(address_of(tmp_path), document) > 100
        one.sink("resume", "a")
        assert one.ask("/health")[0] == 200


def test_a_command_for_sinks_that_do_not_run_says_what_to_do(tmp_path: Path) -> None:
    write_settings(tmp_path, "http://127.0.0.1:1")
    for words in (("show", "a"), ("pause", "a"), ("resume", "a"), ("retry", "a"), ("skip", "a")):
        result = databus(tmp_path, *words)
        assert result.exit_code == 1
        assert "start it with `databus sink run -c" in result.output
    assert "a  print  shop.*  does not run" in databus(tmp_path, "list").output


def test_a_killed_process_leaves_no_address_that_is_believed_and_its_pause_counts(
    tmp_path: Path,
) -> None:
    with Stage("sqlite", ["CREATE TABLE t1 (id INTEGER PRIMARY KEY)"], ["shop.t1"]) as stage:
        stage.start_relay()
        folder = stage.folder
        (folder / "sink.toml").write_text(
            SINKS.format(folder=folder / "state", url=stage.url, http="")
        )
        command = python_module("databus.cli.main", "sink", "run", "-c", folder / "sink.toml")
        sinks = stage.child("sinks", command)
        sinks.start()
        wait_until(lambda: databus(folder, "pause", "a").exit_code == 0, PATIENCE_S)
        assert stat.S_IMODE((folder / "state" / ADDRESS).stat().st_mode) == 0o600
        sinks.kill()
        assert (folder / "state" / ADDRESS).exists()
        assert "start it with" in databus(folder, "show", "a").output
        sinks.start()
        wait_until(lambda: "paused" in databus(folder, "show", "a").output, PATIENCE_S)
        sinks.stop()
        assert not (folder / "state" / ADDRESS).exists()


def test_a_port_that_is_taken_is_named_before_a_sink_reads(
    relay: RelayForTests, tmp_path: Path
) -> None:
    port = relay.url.rpartition(":")[2]
    write_settings(tmp_path, relay.url, f"[http]\nport = {port}")
    result = databus(tmp_path, "run")
    assert result.exit_code == 1
    assert f"127.0.0.1:{port}" in result.output
    assert not (tmp_path / "positions.json").exists()
