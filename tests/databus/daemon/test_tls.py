"""HTTPS of the servers, and what each of the clients says when it cannot have it."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from databus.client import DatabusClient
from databus.client.cli.client import tail
from databus.client.spark.planning.server_pool import Server, ServerPool
from databus.conf.settings import HttpSettings, ServerAccessSettings
from databus.daemon.credentials import ServerAccess
from databus.daemon.tls import server_context
from databus.schemas.errors import DatabusError, ServerError, SettingsError
from tests import PATIENCE_S
from tests.databus.daemon.certificates import Certificates, make_certificates
from tests.databus.daemon.test_access import ADMIN, READER, served, write_tokens
from tests.promises.running import RunningRelay, Shop, running
from tests.relay.fakes import PERSON, ServedRelay, insert, transaction, wait_until


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Of another authority."""
    return make_certificates(tmp_path_factory.mktemp("strangers"))


@pytest.fixture
def token(tmp_path: Path) -> Path:
    return write_tokens(tmp_path / "token", READER)


@pytest.fixture
def relay(tmp_path: Path, certificates: Certificates) -> Iterator[ServedRelay]:
    """A relay with one row, at https, that asks for a token."""
    readers = write_tokens(tmp_path / "readers", READER)
    settings: dict[str, Any] = {**certificates.settings, "reader_tokens_file": readers}
    with served(tmp_path, **settings) as relay:
        relay.put(transaction(1, insert(1, "Ann")))
        yield relay


def access(token: Path | None, ca: Path | None) -> ServerAccessSettings:
    return ServerAccessSettings(token_file=token, tls_ca=ca)


def names_of(url: str, shown: ServerAccessSettings) -> Any:
    server = Server(url, ServerAccess(shown))
    with closing(server):
        return server.get("/sources", {}).json()


def errors_of_client(url: str, shown: ServerAccessSettings, **more: Any) -> list[str]:
    """Run a client until it has failed twice; return what it said, and that it goes on."""
    said: list[str] = []
    back_off = {"first_s": 0.01, "max_s": 0.02}
    client = DatabusClient([url], access=shown, back_off=back_off, start="earliest", **more)
    client.on(PERSON.source)(lambda _event: None)
    client.start()
    try:

        def has_failed_twice() -> bool:
            said.extend(r.problem for r in client.report().registrations if r.problem)
            retries = sum(r.retries for r in client.report().registrations)
            return bool(said) and retries >= 2

        wait_until(has_failed_twice)
    finally:
        client.stop()
    return said


def test_rows_come_over_tls_with_a_token(
    relay: ServedRelay, certificates: Certificates, token: Path
) -> None:
    assert relay.url.startswith("https://127.0.0.1:")
    shown = access(token, certificates.ca)
    client = DatabusClient([relay.url], access=shown, start="earliest")
    with client:
        window = next(iter(client.windows(PERSON.source)))
    assert [event.row["name"] for event in window.events] == ["Ann"]
    assert {source["name"] for source in names_of(relay.url, shown)} >= {PERSON.source}


def test_large_answers_come_whole_over_tls(
    relay: ServedRelay, certificates: Certificates, token: Path
) -> None:
    text = "x" * 3_000_000
    relay.put(transaction(2, insert(2, text)))
    with DatabusClient([relay.url], access=access(token, certificates.ca), start="1") as client:
        window = next(iter(client.windows(PERSON.source)))
    assert window.events[0].row["name"] == text


def test_tail_takes_a_token_and_an_authority(
    relay: ServedRelay, certificates: Certificates, token: Path
) -> None:
    asked = [PERSON.source, "--relay", relay.url, "--from", "earliest", "--count", "1", "--json"]
    asked += ["--token-file", str(token), "--tls-ca", str(certificates.ca)]
    outcome = CliRunner().invoke(tail, asked, catch_exceptions=False)
    assert outcome.exit_code == 0
    assert '"Ann"' in outcome.output


def test_old_versions_of_tls_are_not_spoken(relay: ServedRelay, certificates: Certificates) -> None:
    context = ssl.create_default_context(cafile=certificates.ca)
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    host, port = relay.url.removeprefix("https://").split(":")
    with (
        socket.create_connection((host, int(port))) as sock,
        pytest.raises(ssl.SSLError),
        context.wrap_socket(sock, server_hostname=host),
    ):
        pass


def test_a_server_that_nobody_vouches_for_is_not_asked(
    relay: ServedRelay, strangers: Certificates, token: Path
) -> None:
    for ca in (strangers.ca, None):
        with pytest.raises(ServerError, match=r"certificate is not trusted.*tls_ca"):
            names_of(relay.url, access(token, ca))
    (text, *_) = errors_of_client(relay.url, access(token, strangers.ca))
    assert "certificate is not trusted" in text
    assert "tls_ca" in text


def test_a_server_of_another_name_is_not_asked(tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "elsewhere", "elsewhere.example")
    with served(tmp_path, **made.settings) as relay:
        url = relay.url.replace("127.0.0.1", "localhost")
        with pytest.raises(ServerError, match=r"Hostname mismatch.*a name that is in the cert"):
            names_of(url, access(None, made.ca))


def test_a_wrong_token_is_told_by_what_to_do_and_tried_again(
    relay: ServedRelay, certificates: Certificates, tmp_path: Path
) -> None:
    wrong = write_tokens(tmp_path / "wrong", ADMIN)
    for token in (wrong, None):
        shown = access(token, certificates.ca)
        with pytest.raises(DatabusError, match=r"https:.*token_file or token_env"):
            names_of(relay.url, shown)
        (text, *_) = errors_of_client(relay.url, shown)
        assert "token_file or token_env" in text
        assert ADMIN not in text


def test_a_token_is_looked_for_again_after_a_refusal(
    relay: ServedRelay, certificates: Certificates, tmp_path: Path
) -> None:
    path = write_tokens(tmp_path / "rotated", ADMIN)
    pool = ServerPool([relay.url], 30.0, ServerAccess(access(path, certificates.ca)))

    def rotate(_wait_s: float) -> None:
        path.write_text(READER)

    pool._wait = rotate
    with closing(pool):
        assert pool.get("/sources", {}).json()
    path.write_text(ADMIN)
    got = threading.Event()
    back_off = {"first_s": 0.01, "max_s": 0.02}
    shown = access(path, certificates.ca)
    client = DatabusClient([relay.url], access=shown, back_off=back_off, start="earliest")
    client.on(PERSON.source)(lambda _event: got.set())
    client.start()
    try:
        wait_until(lambda: any(r.retries for r in client.report().registrations))
        path.write_text(READER)
        assert got.wait(PATIENCE_S)
    finally:
        client.stop()


def test_http_and_https_are_not_mistaken_for_each_other(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("databus.client.spark.planning.server_pool.CONNECT_TIMEOUT_S", 0.2)
    shown = access(None, certificates.ca)
    with served(tmp_path) as plain:
        url = plain.url.replace("http:", "https:")
        with pytest.raises(ServerError, match="begins with http://"):
            names_of(url, shown)
        assert "begins with http://" in errors_of_client(url, shown, connect_timeout_s=0.2)[0]


def test_a_client_with_settings_that_cannot_be_used_does_not_begin(tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    for shown in (access(nothing, None), access(None, nothing)):
        with pytest.raises(SettingsError, match="nothing: No such file"):
            DatabusClient(["http://127.0.0.1:1"], access=shown)
        with pytest.raises(SettingsError, match="nothing: No such file"):
            ServerPool(["http://127.0.0.1:1"], 0.0, ServerAccess(shown))


def test_a_certificate_that_cannot_be_used_is_named(
    certificates: Certificates, strangers: Certificates, tmp_path: Path
) -> None:
    def refused(cert: Path, key: Path) -> str:
        with pytest.raises(SettingsError) as error:
            server_context(HttpSettings(tls_cert=cert, tls_key=key))
        return str(error.value)

    assert "key values mismatch" in refused(certificates.cert, strangers.key)
    assert "No such file" in refused(tmp_path / "nothing", certificates.key)
    assert "No such file" in refused(certificates.cert, tmp_path / "nothing")
    assert "PEM" in refused(certificates.key, certificates.key)
    loose = tmp_path / "loose.pem"
    loose.write_bytes(certificates.key.read_bytes())
    loose.chmod(0o644)
    assert f"chmod 600 {loose}" in refused(certificates.cert, loose)


def test_a_signal_lets_a_server_take_new_tokens_and_a_new_certificate(
    tmp_path: Path, certificates: Certificates, strangers: Certificates
) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    readers, mine = tmp_path / "readers", tmp_path / "mine"

    def hand_over(made: Certificates, token: str) -> None:
        cert.write_bytes(made.cert.read_bytes())
        key.touch(0o600)
        key.write_bytes(made.key.read_bytes())
        write_tokens(readers, token)

    hand_over(certificates, READER)
    write_tokens(mine, READER)
    shop = Shop(tmp_path / "shop.db")
    http = {"tls_cert": str(cert), "tls_key": str(key), "reader_tokens_file": str(readers)}
    relay = RunningRelay(tmp_path, shop.settings(), http=http)
    url = relay.url.replace("http:", "https:")
    before, after = access(mine, certificates.ca), access(mine, strangers.ca)

    def is_answered(shown: ServerAccessSettings) -> bool:
        try:
            return bool(names_of(url, shown))
        except DatabusError:
            return False

    with closing(shop), running(relay):
        relay.launch()
        wait_until(lambda: is_answered(before))

        key.write_text("no key")
        os.kill(relay.child.pid, signal.SIGHUP)
        wait_until(lambda: "stay as they were: http.tls_cert" in relay.child.log.read_text())
        assert is_answered(before)

        hand_over(strangers, ADMIN)
        os.kill(relay.child.pid, signal.SIGHUP)
        wait_until(lambda: "were read again" in relay.child.log.read_text())
        assert not is_answered(before)
        with pytest.raises(DatabusError, match="token"):
            names_of(url, after)
        write_tokens(mine, ADMIN)
        assert is_answered(after)
