"""A chain over TLS: a private authority, and every certificate that is not to be accepted."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from databus.schemas.stream.stream_reader import walk
from tests.databus.daemon.certificates import Certificates, make_certificates
from tests.promises.chaining.chain import link, wait_for_equal
from tests.promises.running import RunningRelay, Shop, running, wait_until

SOURCES = [{"name": "shop.orders", "id": 1}]


@pytest.fixture
def good(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path / "good")


@pytest.fixture
def first(shop: Shop, tmp_path: Path, good: Certificates) -> Iterator[RunningRelay]:
    """A relay with TLS and tokens that two processes serve."""
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    tokens.write_text("r" * 20)
    http = {**good.settings, "reader_tokens_file": str(tokens)}
    relay = RunningRelay(
        tmp_path / "first", shop.settings(), http=http, tls_ca=good.ca, serving_processes=2
    )
    with running(relay):
        yield relay.serve()


def second_of(first: RunningRelay, folder: Path, ca: Path, url: str = "") -> RunningRelay:
    token = str(folder / "tokens")
    urls = [url or first.url]
    more = {"upstream_tls_ca": str(ca), "upstream_token_file": token}
    return link(folder / "second", *urls, sources=SOURCES, **more)


def test_a_chain_goes_over_tls_with_a_token_through_serving_processes(
    first: RunningRelay, shop: Shop, tmp_path: Path, good: Certificates
) -> None:
    second = second_of(first, tmp_path, good.ca)
    third = link(tmp_path / "third", second.url, sources=SOURCES)
    with running(second), running(third):
        second.serve()
        third.serve()
        shop.insert(*range(50))
        wait_until(lambda: len(third.windows()) > 0, "rows", third.tell)
        shop.insert(*range(100, 150))
        wait_until(lambda: newest_key_is(third, 149), "all rows", third.tell)
        wait_for_equal(second, third)
        second.child.stop()
        second.change(upstream_token_file=str(wrong_token(tmp_path)))
        second.serve()
        second.wait_for_problem("the token is not known here")


def test_a_wrong_authority_is_named_and_a_right_one_is_taken_without_a_restart(
    first: RunningRelay, shop: Shop, tmp_path: Path, good: Certificates
) -> None:
    ca = tmp_path / "ca.pem"
    shutil.copy(make_certificates(tmp_path / "other").ca, ca)
    with running(second_of(first, tmp_path, ca)) as second:
        second.serve()
        problem = second.wait_for_problem("its certificate is not trusted")
        assert first.url in problem
        assert "as upstream_tls_ca" in problem
        shutil.copy(good.ca, ca)
        shop.insert(1)
        wait_until(lambda: newest_key_is(second, 1), "the row", second.tell)


def test_an_expired_certificate_is_named_until_it_is_renewed(
    first: RunningRelay, shop: Shop, tmp_path: Path, good: Certificates
) -> None:
    expired = make_certificates(tmp_path / "expired", is_expired=True)
    ca = tmp_path / "ca.pem"
    ca.write_bytes(good.ca.read_bytes() + expired.ca.read_bytes())
    with running(second_of(first, tmp_path, ca)) as second:
        second.serve()
        shop.insert(1)
        wait_until(lambda: newest_key_is(second, 1), "the row", second.tell)
        kept = [file.read_bytes() for file in (good.cert, good.key)]
        replace(first, good, expired.cert.read_bytes(), expired.key.read_bytes())
        second.child.kill()
        second.serve()  # on a new connection
        problem = second.wait_for_problem("its certificate has expired")
        assert "renew it" in problem
        assert len(second.windows()) == 1  # what it has is served meanwhile
        replace(first, good, *kept)
        shop.insert(2)
        wait_until(lambda: newest_key_is(second, 2), "the row", second.tell)


def test_a_name_that_the_certificate_does_not_have_is_refused(
    first: RunningRelay, tmp_path: Path, good: Certificates
) -> None:
    other = make_certificates(tmp_path / "other", "relay-a.example")
    replace(first, good, other.cert.read_bytes(), other.key.read_bytes())
    url = f"https://localhost:{first.port}"
    with running(second_of(first, tmp_path, other.ca, url)) as second:
        second.serve()
        problem = second.wait_for_problem("its certificate is not trusted")
        assert "not valid for 'localhost'" in problem


def test_a_relay_without_tls_is_named(shop: Shop, tmp_path: Path, good: Certificates) -> None:
    plain = RunningRelay(tmp_path / "plain", shop.settings())
    with running(plain.start()):
        second = link(
            tmp_path / "second",
            plain.url.replace("http:", "https:"),
            sources=SOURCES,
            upstream_tls_ca=str(good.ca),
        )
        with running(second):
            second.serve()
            second.wait_for_problem("its URL begins with http://")


def wrong_token(folder: Path) -> Path:
    file = folder / "wrong"
    file.touch(0o600)
    file.write_text("w" * 20)
    return file


def replace(relay: RunningRelay, used: Certificates, cert: bytes, key: bytes) -> None:
    """Give a relay another certificate."""
    used.cert.write_bytes(cert)
    used.key.write_bytes(key)
    os.kill(relay.child.pid, signal.SIGHUP)


def newest_key_is(relay: RunningRelay, key: int) -> bool:
    """Return whether a relay has the row that was written last."""
    newest = list(relay.windows().values())[-1:]
    return any(key_of(window) == key for window in newest)


def key_of(window: bytes) -> int:
    *_, last = [event for event in walk(window) if event.src_id > 0]
    assert isinstance(last.key, int)
    return last.key
