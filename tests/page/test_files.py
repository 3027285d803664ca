"""The page's files, as the relay sends them."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from databus.relay.admin.page import FOLDER
from tests.page.fake_relay import FakeRelay
from tests.relay.fakes import get

FILES = sorted(path.name for path in FOLDER.iterdir())
TOKEN = "a-token-of-an-admin"


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[FakeRelay]:
    """A relay that wants a token."""
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKEN)
    tokens.chmod(0o600)
    relay = FakeRelay(admin_tokens_file=tokens)
    yield relay
    relay.stop()


def test_the_page_is_at_the_root(fake: FakeRelay) -> None:
    answer = get(fake.url, "/")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/html; charset=UTF-8"
    assert answer.body == (FOLDER / "index.html").read_bytes()


@pytest.mark.parametrize("name", FILES)
def test_every_file_comes_with_its_type_and_what_it_may_do(fake: FakeRelay, name: str) -> None:
    answer = get(fake.url, f"/page/{name}")
    types = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
    wanted = types.get(name.rpartition(".")[2], "image/svg+xml")
    assert answer.headers["Content-Type"].partition(";")[0] == wanted
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "frame-ancestors 'none'" in policy


def test_a_file_is_sent_once_and_asked_for_each_time(fake: FakeRelay) -> None:
    first = get(fake.url, "/page/main.js")
    assert first.headers["Cache-Control"] == "no-cache"
    again = get(fake.url, "/page/main.js", {"If-None-Match": first.headers["ETag"]})
    assert (again.status, again.body) == (304, b"")
    other = get(fake.url, "/page/main.js", {"If-None-Match": 'W/"another"'})
    assert other.status == 200


def test_a_file_is_sent_compressed_to_who_can_read_that(fake: FakeRelay) -> None:
    answer = get(fake.url, "/page/map.js", {"Accept-Encoding": "gzip"})
    assert gzip.decompress(answer.body) == (FOLDER / "map.js").read_bytes()
    assert answer.headers["Vary"] == "Accept-Encoding"


@pytest.mark.parametrize("path", ["none.js", "..%2fpage.py", "%2e%2e/page.py", "page.py", ""])
def test_nothing_else_is_sent(fake: FakeRelay, path: str) -> None:
    assert get(fake.url, f"/page/{path}").status == 404


def test_the_files_need_no_token_and_the_figures_do(locked: FakeRelay) -> None:
    assert get(locked.url, "/").status == 200
    assert get(locked.url, "/page/main.js").status == 200
    assert get(locked.url, "/api/v1/relay").status == 401


def test_no_file_names_another_server_or_has_code_in_markup() -> None:
    for name in FILES:
        text = (FOLDER / name).read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|//cdn|@import|url\(", text), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|eval\(|document\.write", text), (
            name
        )
    index = (FOLDER / "index.html").read_text("utf-8")
    assert not re.search(r"\son\w+=|style=|<style|<script>", index)


def test_every_file_is_used_and_every_one_that_is_used_is_there() -> None:
    used = {"index.html"}
    for name in FILES:
        text = (FOLDER / name).read_text("utf-8")
        used |= set(re.findall(r'"page/([^"]+)"', text)) | set(
            re.findall(r'from "\./([^"]+)"', text)
        )
    assert used == set(FILES)
