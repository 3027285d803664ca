"""Which sources a sink reads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from databus.cli.api_client import ApiClient
from databus.client import DatabusClient
from databus.client.sinks.serving.discovery import RelayLook, chosen
from databus.conf.settings import ClientSettings
from databus.schemas.errors import NoAnswerError, SettingsError
from databus.testing import RelayForTests, running_relay

CAPTURED = {"shop": ["shop.orders", "shop.tmp_1", "shop.a*"], "crm": ["crm.people"]}


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["shop.orders"], {"shop": ("shop.orders",)}),
        (["shop.*", "!shop.tmp_*"], {"shop": ("shop.a*", "shop.orders")}),
        (["*.orders", "crm.*"], {"shop": ("shop.orders",), "crm": ("crm.people",)}),
        (["shop.a\\*"], {"shop": ("shop.a*",)}),
        (["none.*"], {}),
    ],
)
def test_names_and_patterns_choose_sources_of_physical_sources(
    patterns: list[str], expected: dict[str, tuple[str, ...]]
) -> None:
    assert chosen(patterns, CAPTURED) == expected


def test_a_name_that_nobody_captures_is_said() -> None:
    with pytest.raises(SettingsError, match=r"source shop\.order is not captured; the relay has"):
        chosen(["shop.order"], CAPTURED)


@pytest.fixture(scope="module")
def relay() -> Iterator[RelayForTests]:
    with running_relay("CREATE TABLE orders (id INTEGER PRIMARY KEY)") as relay:
        relay.execute("INSERT INTO orders VALUES (1)")
        yield relay


def test_the_first_relay_that_answers_says_what_there_is(relay: RelayForTests) -> None:
    look = RelayLook(ClientSettings(relays=("http://127.0.0.1:1", relay.url)))
    assert look.sources() == {"shop": ["shop.orders"]}


def test_without_a_relay_that_answers_the_problem_names_them_all() -> None:
    look = RelayLook(ClientSettings(relays=("http://127.0.0.1:1",)))
    with pytest.raises(NoAnswerError, match=r"127\.0\.0\.1:1"):
        look.sources()


def test_a_relay_says_how_far_back_it_has_a_source(relay: RelayForTests) -> None:
    look = RelayLook(ClientSettings(relays=("http://127.0.0.1:1", relay.url)))
    with DatabusClient(relay.url) as client:
        assert look.oldest_scn(["shop.orders"]) == next(client.windows("shop.orders")).scn
    assert look.oldest_scn(["shop.nothing"]) is None
    assert RelayLook(ClientSettings(relays=("http://127.0.0.1:1",))).oldest_scn(["a"]) is None


def test_a_source_that_has_no_schema_yet_has_no_known_beginning(
    relay: RelayForTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = RelayLook(ClientSettings(relays=(relay.url,)))
    answers = {
        "/api/v1/physicalSources/shop": {"ring": {"minScn": "50"}, "relayLog": None},
        "/api/v1/schemas": {"sources": [{"source": "shop.new", "versions": []}]},
    }
    monkeypatch.setattr(ApiClient, "get_json", lambda _client, path: answers[path])
    assert not look.has_beginning("shop", "shop.new", 50)
    assert look.has_beginning("shop", "shop.new", 51)
