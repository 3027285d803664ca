"""Who is answered: tokens and their files, roles, methods, other origins and hosts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from databus.conf.loading import build_settings
from databus.conf.settings import HttpSettings, ServerAccessSettings
from databus.daemon.access import Access, Role
from databus.daemon.http.openapi import DOCUMENT_PATH
from databus.daemon.http.server import host_of_java
from databus.daemon.tokens import make_access, read_token
from databus.relay.serving.databus.handlers import CONTROLS, SERVICES
from databus.schemas.errors import SettingsError
from tests.relay.fakes import Answer, ServedRelay, connect, get, post

READER = "reader-0123456789abcdef"
ADMIN = "admin-0123456789abcdef"
CHANGING = [f"/controlSources/{verb}" for verb in CONTROLS]
CHANGING += [f"/relayCommand/{verb}" for verb in SERVICES]
READING = ["/sources", "/register", "/stream?sources=1&size=1000", "/metrics", "/physicalSources"]
READING += ["/controlSources/status", "/relayCommand/getPrevScn", "/containerStats"]


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def write_tokens(path: Path, *tokens: str, mode: int = 0o600) -> Path:
    path.touch(mode)
    path.chmod(mode)
    path.write_text("\n".join(["# made for a test", *tokens, ""]))
    return path


@contextmanager
def served(folder: Path, **http: Any) -> Iterator[ServedRelay]:
    relay = ServedRelay(folder, http={"port": 0} | http)
    try:
        yield relay
    finally:
        relay.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedRelay]:
    """A relay that asks for tokens."""
    with served_with_tokens(tmp_path_factory.mktemp("guarded")) as relay:
        relay.server.start_threads()
        yield relay


@contextmanager
def served_with_tokens(folder: Path) -> Iterator[ServedRelay]:
    readers = write_tokens(folder / "readers", "another-reader-0123", f"{READER}  # of a dashboard")
    admins = write_tokens(folder / "admins", ADMIN)
    with served(folder, reader_tokens_file=readers, admin_tokens_file=admins) as relay:
        yield relay


@pytest.fixture(scope="module")
def open_relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedRelay]:
    """A relay on loopback without tokens."""
    with served(tmp_path_factory.mktemp("open")) as relay:
        relay.server.start_threads()
        yield relay


def said(answer: Answer) -> tuple[int, str]:
    return answer.status, json.loads(answer.body)["error"]


@pytest.mark.parametrize("path", READING + CHANGING)
def test_without_a_known_token_nothing_is_answered(guarded: ServedRelay, path: str) -> None:
    ask = post if path in CHANGING else get
    for headers in ({}, bearer("reader-0123456789abcdeg"), {"Authorization": f"Basic {READER}"}):
        answer = ask(guarded.url, path, headers)
        assert said(answer) == (401, "UnauthorizedException")
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert "token" in answer.headers["x-dbus-error-message"]


@pytest.mark.parametrize("path", READING)
def test_a_reader_reads(guarded: ServedRelay, path: str) -> None:
    assert get(guarded.url, path, bearer(READER)).status == 200
    assert get(guarded.url, path, bearer("another-reader-0123")).status == 200


@pytest.mark.parametrize("path", CHANGING)
def test_a_reader_changes_nothing(guarded: ServedRelay, path: str) -> None:
    answer = post(guarded.url, path, bearer(READER))
    assert said(answer) == (403, "ForbiddenException")
    assert "admin_tokens_file" in json.loads(answer.body)["message"]


def test_a_reader_changes_nothing_by_any_verb_of_the_admin_api(guarded: ServedRelay) -> None:
    # T65: every write route that there is, also one that comes later.
    document = json.loads(get(guarded.url, DOCUMENT_PATH, bearer(READER)).body)
    writes = [
        (method, path)
        for path, methods in document["paths"].items()
        for method in methods
        if method != "get"
    ]
    assert len(writes) > 5
    answers = {}
    for method, path in writes:
        target = re.sub(r"\{\w+\}", "shop", path)
        headers = bearer(READER) | {"Host": urlsplit(guarded.url).netloc, "Content-Length": "0"}
        answers[path] = get(guarded.url, target, headers, method.upper()).status
    # A client reports about itself.
    own = answers.pop("/api/v1/clients/{id}")
    assert own not in (200, 401, 403)
    assert set(answers.values()) == {403}


@pytest.mark.parametrize("path", CHANGING)
def test_nothing_is_changed_by_get_whoever_asks(guarded: ServedRelay, path: str) -> None:
    answer = get(guarded.url, path, bearer(ADMIN))
    assert (answer.status, answer.headers["Allow"]) == (405, "POST")
    assert "it is one by POST" in answer.headers["x-dbus-error-message"]


@pytest.mark.parametrize("path", CHANGING)
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:1"])
def test_nothing_is_changed_for_the_page_of_another_site(
    guarded: ServedRelay, path: str, origin: str
) -> None:
    answer = post(guarded.url, path, bearer(ADMIN) | {"Origin": origin})
    assert said(answer) == (403, "ForbiddenException")
    assert "Origin" in json.loads(answer.body)["message"]


def test_an_admin_reads_and_changes(tmp_path: Path) -> None:
    with served_with_tokens(tmp_path) as relay:
        assert get(relay.url, "/sources", bearer(ADMIN)).status == 200
        headers = bearer(ADMIN) | {"Origin": relay.url}  # the relay's own page
        for verb in ("pause", "unpause", "shutdown", "start"):
            assert post(relay.url, f"/controlSources/{verb}", headers).status == 200
        assert post(relay.url, "/relayCommand/runGC", headers).status == 200


@pytest.mark.parametrize("path", ["/admin", "/health", "/nonsense"])
def test_what_load_balancers_ask_for_needs_no_token(guarded: ServedRelay, path: str) -> None:
    assert get(guarded.url, path).status == (404 if path == "/nonsense" else 200)


def test_without_a_token_a_probe_is_told_the_status_alone(guarded: ServedRelay) -> None:
    for path in ("/health", "/ready"):
        alone = {"service": "relay", "status": "ok"}
        assert json.loads(get(guarded.url, path).body) == alone
        assert json.loads(get(guarded.url, path, bearer("x" * 20)).body) == alone
    assert "physicalSources" in json.loads(get(guarded.url, "/health", bearer(READER)).body)


def test_a_method_that_there_is_not_is_refused_with_those_that_there_are(
    guarded: ServedRelay,
) -> None:
    answer = get(guarded.url, "/sources", bearer(READER), "DELETE")
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, POST")


@pytest.mark.parametrize("path", CHANGING)
def test_without_tokens_the_page_of_another_site_changes_nothing(
    open_relay: ServedRelay, path: str
) -> None:
    for headers in (
        {"Origin": "https://evil.example"},
        # Its own name may stand for 127.0.0.1 by now, and the browser takes that for its origin.
        {"Origin": "http://evil.example:11115", "Host": "evil.example:11115"},
        {"Host": "evil.example"},
        {"Host": "relay"},
        {"Host": "[evil"},
    ):
        assert said(post(open_relay.url, path, headers))[0] in (400, 403)
    assert get(open_relay.url, path).status == 405


def test_without_tokens_rows_are_not_read_by_the_page_of_another_site(
    open_relay: ServedRelay,
) -> None:
    for host in ("evil.example", "evil.example:11115", "1.evil.example"):
        answer = get(open_relay.url, "/stream?sources=1&size=1000", {"Host": host})
        assert said(answer) == (403, "ForbiddenException")
        assert "http.host" in json.loads(answer.body)["message"]
    for host in ("127.0.0.1:80", "[::1]:80", "localhost", "LOCALHOST:11115", "relay"):
        assert get(open_relay.url, "/sources", {"Host": host}).status == 200


JAVA_HOSTS = {
    "localhost/127.0.0.1:21115": "127.0.0.1:21115",
    "/127.0.0.1:21115": "127.0.0.1:21115",
    "localhost/0:0:0:0:0:0:0:1:21115": "[0:0:0:0:0:0:0:1]:21115",
    "localhost/[0:0:0:0:0:0:0:1]:21115": "[0:0:0:0:0:0:0:1]:21115",
    "relay.example.com/evil.example:80": "evil.example:80",
}


@pytest.mark.parametrize(("text", "host"), JAVA_HOSTS.items())
def test_the_host_in_the_text_of_a_java_address_is_what_follows_the_slash(
    text: str, host: str
) -> None:
    assert host_of_java(text) == host


def test_the_host_of_a_stock_java_client_is_known_and_that_of_another_is_not(
    open_relay: ServedRelay,
) -> None:
    for host in (host for host in JAVA_HOSTS if "evil" not in host):
        assert get(open_relay.url, "/sources", {"Host": host}).status == 200
        assert post(open_relay.url, "/relayCommand/runGC", {"Host": host}).status == 200
    # What precedes the slash proves nothing.
    elsewhere = ("localhost/evil.example:21115", "127.0.0.1/evil.example", "/evil.example:80")
    for host in (*elsewhere, "evil.example/", "/"):  # the last two leave no name
        answer = get(open_relay.url, "/sources", {"Host": host})
        assert said(answer) == (403, "ForbiddenException")
    for host in ("localhost/<unresolved>:80", "evil.example, localhost/127.0.0.1:80"):
        assert get(open_relay.url, "/sources", {"Host": host}).status == 400


def test_a_target_with_a_host_is_served_and_the_host_checked(open_relay: ServedRelay) -> None:
    for target in ("http://127.0.0.1:80/sources", "HTTPS://localhost/sources?v=1"):
        answer = get(open_relay.url, target, {"Host": "evil.example"})
        assert (answer.status, answer.body) == (200, get(open_relay.url, "/sources").body)
    assert get(open_relay.url, "http://relay?v=1").status == get(open_relay.url, "/?v=1").status
    for host in ("evil.example", "relay@evil.example", "user:evil@relay"):
        answer = get(open_relay.url, f"http://{host}/sources", {"Host": "localhost"})
        assert answer.status in (400, 403)
    for host in ("a, b", "a,b"):
        answer = get(open_relay.url, "http://localhost/sources", {"Host": host})
        assert answer.status == 400
    with connect(open_relay.url) as sock:
        sock.sendall(b"GET http://localhost/sources HTTP/1.1\r\n\r\n")
        assert sock.recv(1000).startswith(b"HTTP/1.1 400")
    # No host, or another scheme: no target of ours.
    for target in ("http:///sources", "ftp://localhost/sources"):
        assert get(open_relay.url, target).status == 404


def test_without_tokens_health_is_told_in_full_but_to_the_page_of_another_site(
    open_relay: ServedRelay,
) -> None:
    assert "physicalSources" in json.loads(get(open_relay.url, "/health").body)
    answer = get(open_relay.url, "/health", {"Host": "evil.example"})
    assert json.loads(answer.body) == {"service": "relay", "status": "ok"}


def test_without_tokens_whoever_is_on_this_machine_changes_things(tmp_path: Path) -> None:
    with served(tmp_path) as relay:
        for path in CHANGING:
            assert post(relay.url, path).status == 200


def test_roles_are_found_by_token() -> None:
    access = Access([READER], [ADMIN])
    assert access.role_of(f"bearer {READER}") is Role.READER
    assert access.role_of(f"Bearer  {ADMIN} ") is Role.ADMIN
    assert access.role_of("Bearer ") is Role.NOBODY
    assert access.role_of("Bearer " + "é" * 20) is Role.NOBODY
    assert Access([READER], [READER]).role_of(f"Bearer {READER}") is Role.ADMIN
    assert Access().role_of(None) is Role.ADMIN


def test_tokens_may_come_from_the_environment() -> None:
    settings = HttpSettings(reader_token_env="READ", admin_token_env="ADMINISTER")
    access = make_access(settings, {"READ": READER, "ADMINISTER": ADMIN})
    assert access.role_of(f"Bearer {READER}") is Role.READER
    assert access.role_of(f"Bearer {ADMIN}") is Role.ADMIN
    with pytest.raises(SettingsError, match=r"http\.admin_token_env: .* ADMINISTER is not set"):
        make_access(settings, {"READ": READER})


def test_a_token_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    for mode in (0o644, 0o604, 0o602):
        path = write_tokens(tmp_path / f"{mode:o}", ADMIN, mode=mode)
        with pytest.raises(SettingsError, match=rf"admin_tokens_file .*: chmod 600 {path}"):
            make_access(HttpSettings(admin_tokens_file=path))
        with pytest.raises(SettingsError, match=r"token_file .*: chmod 600"):
            read_token(ServerAccessSettings(token_file=path))
    # As systemd leaves a credential: an ACL shows in the group's bits.
    path = write_tokens(tmp_path / "credential", ADMIN, mode=0o640)
    assert read_token(ServerAccessSettings(token_file=path)) == ADMIN


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "no token"), ("# only this", "no token"), ("short", "16"), ("has a space in it", "16")],
)
def test_a_token_file_is_refused_without_repeating_it(tmp_path: Path, text: str, says: str) -> None:
    path = write_tokens(tmp_path / "tokens", text)
    with pytest.raises(SettingsError, match=f"reader_tokens_file.*{says}.*openssl rand") as error:
        make_access(HttpSettings(reader_tokens_file=path))
    assert not text or text not in str(error.value).replace(str(path), "")


def test_a_token_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"reader_tokens_file .*: No such file"):
        make_access(HttpSettings(reader_tokens_file=tmp_path / "nothing"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "", "db.example.com"])
def test_an_address_that_others_reach_wants_tokens_or_a_word(host: str) -> None:
    with pytest.raises(SettingsError, match=r"others reach .*admin_tokens_file.*open_to_all = tr"):
        build_settings({"host": host}, HttpSettings)
    assert HttpSettings(host=host, open_to_all=True).host == host
    assert HttpSettings(host=host, reader_token_env="TOKEN").host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_wants_nothing(host: str) -> None:
    assert not HttpSettings(host=host).has_tokens


def test_certificate_and_key_come_together() -> None:
    for key in ("tls_cert", "tls_key"):
        with pytest.raises(SettingsError, match="together"):
            build_settings({key: "x.pem"}, HttpSettings)


def test_a_client_has_one_token() -> None:
    with pytest.raises(SettingsError, match="not both"):
        build_settings({"token_file": "a", "token_env": "B"}, ServerAccessSettings)
