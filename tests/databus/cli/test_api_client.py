"""Commands that ask a daemon: tokens, TLS, and what is said when there is no good answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from databus.cli.api_client import ApiClient, named_server
from databus.cli.main import main
from databus.schemas.errors import ForbiddenError, ServerError, SettingsError, UnauthorizedError
from tests.relay.fakes import ServedRelay
from tests.relay.sources.certificates import write_certificates

TOKEN = "a-token-that-is-long-enough"
ANSWER = b"HTTP/1.1 %b\r\nContent-Length: %d\r\nConnection: close\r\n%b\r\n%b"


@contextmanager
def served(folder: Path, **http: Any) -> Iterator[ServedRelay]:
    relay = ServedRelay(folder, http={"port": 0} | http)
    try:
        yield relay
    finally:
        relay.close()


@contextmanager
def answering(status: str, body: bytes, headers: str = "") -> Iterator[str]:
    """Answer one request with these bytes; gives the URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            link, _ = listener.accept()
            with link:
                link.recv(65536)
                link.sendall(ANSWER % (status.encode(), len(body), headers.encode(), body))

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"# of the reader\n{TOKEN}\n")
    path.chmod(0o600)
    return path


def test_a_server_that_asks_for_a_token_gets_it_from_the_file(
    tmp_path: Path, token_file: Path
) -> None:
    with served(tmp_path / "relay", reader_tokens_file=token_file) as relay:
        with pytest.raises(UnauthorizedError, match="it asks for a token"):
            ApiClient(relay.url).get_json("/sources")
        with pytest.raises(UnauthorizedError, match="not known there"):
            ApiClient(relay.url, "another-token-altogether").get_json("/sources")
        assert len(named_server(relay.url, token_file, None).get_json("/sources")) == 2
        words = ["top", "--once", "--relay", relay.url]
        refused = CliRunner().invoke(main, words)
        assert (refused.exit_code, "--token-file" in refused.output) == (1, True)
        shown = CliRunner().invoke(main, [*words, "--token-file", str(token_file)])
        assert shown.exit_code == 0, shown.output
        assert TOKEN not in shown.output + repr(ApiClient(relay.url, TOKEN))


def test_a_server_at_https_is_believed_by_its_ca_alone(tmp_path: Path) -> None:
    write_certificates(tmp_path)
    (tmp_path / "key.pem").chmod(0o600)
    pair = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}
    with served(tmp_path / "relay", **pair) as relay:
        assert ApiClient(relay.url, tls_ca=tmp_path / "ca.pem").get_json("/sources")
        with pytest.raises(ServerError, match="check --tls-ca"):
            ApiClient(relay.url, tls_ca=tmp_path / "another-ca.pem").get_json("/sources")
        with pytest.raises(SettingsError, match="--tls-ca"):
            ApiClient(relay.url, tls_ca=tmp_path / "key.pem").get_json("/sources")


def test_the_servers_clock_comes_with_the_answer(tmp_path: Path) -> None:
    with served(tmp_path) as relay:
        clock_s = ApiClient(relay.url).get("/sources").clock_s
    assert clock_s is not None
    assert clock_s > 1.6e9


@pytest.mark.parametrize(
    ("status", "body", "error", "text"),
    [
        ("200 OK", b"<html>", ServerError, "is not JSON, so it is no databus"),
        ("403 No", b'{"message": "not for you"}', ForbiddenError, "not for you"),
        ("500 Oops", b'{"message": "broken"}', ServerError, "/x: 500 broken"),
        ("500 Oops", b"nothing", ServerError, "/x: 500 Oops"),
    ],
)
def test_what_is_no_good_answer_is_said(
    status: str, body: bytes, error: type[Exception], text: str
) -> None:
    with answering(status, body) as url, pytest.raises(error, match=text):
        ApiClient(url).get_json("/x")


def test_a_token_does_not_follow_a_redirection() -> None:
    headers = "Location: http://127.0.0.1:9/\r\n"
    with answering("302 There", b"", headers) as url, pytest.raises(ServerError, match="302"):
        ApiClient(url, TOKEN).get_json("/x")


def test_an_address_that_is_none_and_a_server_that_is_away_are_said() -> None:
    with pytest.raises(SettingsError, match="begins with http"):
        ApiClient("127.0.0.1:11115").get_json("/x")
    with pytest.raises(ServerError, match="does not answer: Connection refused"):
        ApiClient("http://127.0.0.1:9").get_json("/x")
