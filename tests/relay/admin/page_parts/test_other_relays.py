"""Other relays, asked for by a relay for its page."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from databus.conf.settings import OtherRelaysSettings
from tests.promises.running import wait_until
from tests.relay.fakes import ServedRelay, insert, transaction

Made = Callable[..., ServedRelay]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    """Make relays, each in a folder of its own."""
    with ExitStack() as open_relays:

        def make(name: str, **changes: Any) -> ServedRelay:
            folder = tmp_path / name
            folder.mkdir()
            relay = ServedRelay(folder, **changes)
            open_relays.callback(relay.close)
            return relay

        yield make


def others(relay: ServedRelay) -> list[dict[str, Any]]:
    """Return what a relay knows of the others."""
    found: list[dict[str, Any]] = json.loads(relay.get("/api/v1/relays").body)["relays"]
    return found


def test_a_relay_without_other_relays_shows_none(made: Made) -> None:
    assert others(made("alone")) == []


def test_another_relay_is_shown_as_it_says_itself(made: Made) -> None:
    other = made("other")
    other.put(transaction(1, insert(1)))
    relay = made("this", other_relays={"urls": [f"{other.url}/"]})
    (found,) = others(relay)
    assert found["url"] == other.url
    assert (found["problem"], found["isHealthy"], found["clients"]) == ("", True, {})
    (source,) = found["sources"]
    assert (source["name"], source["state"], source["isConnected"]) == ("shop", "running", True)


def test_of_a_relay_that_does_not_answer_nothing_is_shown_but_since_when(made: Made) -> None:
    other = made("other")
    relay = made("this", other_relays={"urls": [other.url]})
    seen_at = others(relay)[0]["seenAt"]
    other.close()
    wait_until(lambda: others(relay)[0]["problem"], "the relay that is gone")
    assert others(relay)[0] == {
        "url": other.url,
        "seenAt": pytest.approx(seen_at, abs=60),
        "problem": "does not answer: Connection refused",
        "version": "",
        "isHealthy": None,
        "sources": [],
        "clients": None,
    }


def test_no_request_waits_for_a_relay_that_is_frozen(made: Made) -> None:
    well = made("well")
    with socket.create_server(("127.0.0.1", 0)) as frozen:  # takes connections, answers nothing
        url = f"http://127.0.0.1:{frozen.getsockname()[1]}"
        relay = made("this", other_relays={"urls": [url, well.url]})
        first, second = others(relay)
        assert (first["isHealthy"], first["problem"], first["seenAt"]) == (None, "", None)
        assert second["seenAt"] is not None
        wait_until(lambda: others(relay)[0]["problem"] != "", "the frozen one given up")


def test_a_server_that_is_no_relay_is_said_to_be_none(made: Made) -> None:
    relay = made("this")
    stranger = made("other", other_relays={"urls": [f"{relay.url}/page"]})
    wait_until(lambda: others(stranger)[0]["problem"], "the answer")
    assert "404" in others(stranger)[0]["problem"]


@pytest.mark.parametrize("url", ["relay-b:11115", "ftp://relay-b", "http://me:secret@relay-b"])
def test_what_is_no_url_of_a_relay_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ValueError, match="is not a URL like") as refused:
        OtherRelaysSettings(urls=(url,))
    assert "secret@" not in str(refused.value).partition("[type=")[0]
