"""The sink `webhook`, and receivers that answer in different ways."""

from __future__ import annotations

import hmac
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from databus.client.sinks.contract import Opening
from databus.client.sinks.errors import SinkRefusedError, SinkUnavailableError
from databus.client.sinks.loading import sink_maker
from databus.client.sinks.ready.webhook import WebhookSink, retry_after_s
from databus.client.sinks.running.feed import Feed, SinkState
from databus.schemas.errors import SettingsError
from databus.testing.recorder import Recorder
from tests.client.shop import wait_until
from tests.client.sinks.changes import ListedStream, made, plan_of, window

SECRET = "a secret of the webhook"
CHANGES = [replace(made("insert", at, scn=40), index=at) for at in range(5)]


class Request(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """Answers with the next status of a list; then with 200."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.says = b"said"
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.requests.append(Request(self.path, headers, body))
                status, more = receiver.answers.pop(0) if receiver.answers else (200, {})
                self.send_response(status)
                for name, value in more.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(receiver.says)))
                self.end_headers()
                self.wfile.write(receiver.says)

            def log_message(self, *_arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self._thread = threading.Thread(target=self.server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(SECRET)
    path.chmod(0o600)
    return path


def webhook(receiver: Receiver, **options: Any) -> WebhookSink:
    given = {"url": f"{receiver.url}/changes?of=shop", **options}
    return WebhookSink(WebhookSink.Options.model_validate(given))


def test_batches_are_signed_and_each_change_has_an_id(
    receiver: Receiver, secret_file: Path
) -> None:
    sink = webhook(receiver, secret_file=secret_file, batch=2)
    assert sink.open(Opening("test", "shop")) is None
    sink.write(CHANGES)
    assert sink.flush() is None
    sink.close()
    assert [one.path for one in receiver.requests] == ["/changes?of=shop"] * 3
    keys = [one.headers["idempotency-key"] for one in receiver.requests]
    assert keys == ["40:0..40:1", "40:2..40:3", "40:4"]
    for request in receiver.requests:
        time_part, _, signed = request.headers["databus-signature"].partition(",v1=")
        wanted = hmac.new(
            SECRET.encode(), time_part.removeprefix("t=").encode() + b"." + request.body, sha256
        )
        assert hmac.compare_digest(signed, wanted.hexdigest())
        assert request.headers["content-type"] == "application/json"
    sent = [one for request in receiver.requests for one in json.loads(request.body)["changes"]]
    assert [one["id"] for one in sent] == [f"40:{at}" for at in range(5)]
    assert sent[0]["after"] == {"id": 0}


def test_without_a_secret_nothing_is_signed(receiver: Receiver) -> None:
    sink = webhook(receiver)
    sink.write(CHANGES)
    sink.close()
    assert "databus-signature" not in receiver.requests[0].headers


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503])
def test_a_receiver_that_is_busy_is_asked_again_when_it_says(
    receiver: Receiver, status: int
) -> None:
    receiver.answers = [(status, {"Retry-After": "7"})]
    sink = webhook(receiver)
    with pytest.raises(SinkUnavailableError, match=str(status)) as raised:
        sink.write(CHANGES)
    assert raised.value.retry_after_s == 7
    sink.write(CHANGES)
    sink.close()
    first, again = receiver.requests
    assert first.headers["idempotency-key"] == again.headers["idempotency-key"]
    assert first.body == again.body


def test_a_request_that_meets_a_busy_moment_is_sent_again_and_those_before_it_are_not(
    receiver: Receiver,
) -> None:
    receiver.answers = [(200, {}), (503, {}), (429, {"Retry-After": "0"}), (200, {})]
    sink = webhook(receiver, batch=2)
    sink.write(CHANGES)
    sink.close()
    keys = [one.headers["idempotency-key"] for one in receiver.requests]
    assert keys == ["40:0..40:1", "40:2..40:3", "40:2..40:3", "40:2..40:3", "40:4"]


@pytest.mark.parametrize("status", [301, 400, 404, 422])
def test_another_answer_is_a_refusal_that_names_the_row_of_a_batch_of_one(
    receiver: Receiver, status: int
) -> None:
    sink = webhook(receiver)
    for changes, named in ((CHANGES, None), (CHANGES[:1], CHANGES[0])):
        receiver.answers = [(status, {"Location": f"{receiver.url}/other"})]
        with pytest.raises(SinkRefusedError, match=f"{status} .*: said") as raised:
            sink.write(changes)
        assert raised.value.change is named
    sink.close()
    assert [one.path for one in receiver.requests] == ["/changes?of=shop"] * 2  # no redirect


def test_a_receiver_that_is_away_is_unavailable() -> None:
    away = Receiver()
    away.close()
    sink = webhook(away)
    with pytest.raises(SinkUnavailableError, match=r"127\.0\.0\.1"):
        sink.write(CHANGES)
    sink.close()


def test_retry_after_is_in_seconds_or_a_date() -> None:
    now = datetime(2026, 11, 28, 23, tzinfo=UTC)
    assert retry_after_s({"retry-after": "Sat, 28 Nov 2026 23:00:30 GMT"}, now) == 30
    assert retry_after_s({"retry-after": "Sat, 28 Nov 2026 22:00:30 GMT"}, now) == 0
    assert retry_after_s({"retry-after": "999999999"}, now) == 3600
    for none in ({}, {"retry-after": "soon"}, {"retry-after": "-1"}):
        assert retry_after_s(none, now) is None


def test_a_secret_that_others_may_read_is_refused(receiver: Receiver, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x" * 20)
    (tmp_path / "secret").chmod(0o644)
    with pytest.raises(SettingsError, match="others may read it"):
        webhook(receiver, secret_file=tmp_path / "secret")


@pytest.mark.parametrize("url", ["shop.example", "ftp://shop.example", "http://me:pw@shop.example"])
def test_an_option_that_is_no_url_is_refused_without_showing_a_password(url: str) -> None:
    with pytest.raises(SettingsError, match=r"options of webhook.*is not a URL") as raised:
        sink_maker("webhook", {"url": url})
    assert "pw" not in str(raised.value)


def test_a_receiver_that_asks_for_a_pause_makes_the_sink_failing_until_it_takes_the_rows(
    receiver: Receiver,
) -> None:
    receiver.answers = [(429, {"Retry-After": "2"})]
    stream = ListedStream(window(1, ("t", 1)))
    make = sink_maker("webhook", {"url": receiver.url})
    feed = Feed(replace(plan_of(Recorder()), make=make), stream)
    feed.start()
    try:
        wait_until(lambda: feed.state is SinkState.FAILING)
        problem = feed.status.problem
        assert "answered 429 Too Many Requests: said; it is asked again after 2 s" in problem
        wait_until(lambda: stream.stored == [1])
        wait_until(lambda: feed.state is SinkState.RUNNING and not feed.status.problem)
    finally:
        feed.stop()
    assert len(receiver.requests) == 2


def test_what_a_receiver_says_is_shown_as_one_short_line(receiver: Receiver) -> None:
    receiver.says = b"\x1b[31mno\nERROR forged line\r\xff " + b"x" * 5000
    receiver.answers = [(400, {})]
    sink = webhook(receiver)
    with pytest.raises(SinkRefusedError) as raised:
        sink.write(CHANGES)
    sink.close()
    said = str(raised.value).partition("400 Bad Request: ")[2]
    assert said.startswith("\\x1b[31mno\\nERROR forged line\\r")
    assert (said.isprintable(), len(said)) == (True, 200)
