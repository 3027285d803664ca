"""The keyword arguments of a client are its settings, for people, editors and type checkers."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, get_type_hints

import pytest

from databus.client import DatabusClient
from databus.client.consumer import Consumer
from databus.client.options import ClientOptions
from databus.conf.settings import ClientSettings
from databus.schemas.errors import SettingsError

RELAY = "http://127.0.0.1:1"


def test_each_setting_is_a_typed_keyword_argument() -> None:
    assert {*get_type_hints(ClientOptions)} == {*ClientSettings.model_fields} - {"relays"}


def test_a_url_alone_is_one_server() -> None:
    client = DatabusClient(RELAY, bootstrap_servers="http://127.0.0.1:2")
    assert client.settings.relays == (RELAY,)
    assert client.settings.bootstrap_servers == ("http://127.0.0.1:2",)
    assert DatabusClient([RELAY]).settings == DatabusClient((RELAY,)).settings


@pytest.mark.parametrize("key", ["checkpoint_dirr", "relay", "starts"])
def test_a_mistyped_keyword_is_an_error(key: str) -> None:
    options: dict[str, Any] = {key: "x"}
    with pytest.raises(SettingsError, match=f"{key} is not a setting"):
        DatabusClient(RELAY, **options)


@pytest.mark.parametrize(
    ("start", "text"),
    [
        (17, "17"),
        ("latest", "latest"),
        (datetime(2026, 11, 21, 10, tzinfo=UTC), "time:2026-11-21T10:00:00Z"),
        (datetime(2026, 11, 21, 10, 0, 0, 7, timezone(timedelta(hours=2))), ".000007Z"),
    ],
)
def test_it_starts_at_an_scn_a_time_or_a_named_place(start: Any, text: str) -> None:
    assert DatabusClient(RELAY, start=start).settings.start.endswith(text)


@pytest.mark.parametrize(
    ("start", "problem"),
    [
        (datetime(2026, 11, 21), "has no zone"),  # noqa: DTZ001: that is what is refused
        (datetime(1969, 11, 21, tzinfo=UTC), "between 1970 and 2262"),
        (-1, "names no place"),
        ("yesterday", "names no place"),
    ],
)
def test_a_start_that_is_no_place_is_an_error(start: Any, problem: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(problem)):
        DatabusClient(RELAY, start=start)


def test_a_function_that_cannot_be_called_with_one_argument_is_refused_at_once() -> None:
    client = DatabusClient(RELAY)

    def take(event: object, more: object) -> None: ...

    with pytest.raises(SettingsError, match=r"take is called with one argument.*'more'"):
        client.on("shop.orders")(take)
    client.on("shop.orders")(print)


def test_a_class_in_place_of_a_consumer_is_refused_in_plain_words() -> None:
    client = DatabusClient(RELAY)
    with pytest.raises(SettingsError, match=r"Consumer is a class: give a consumer, Consumer\(\)"):
        client.register(Consumer, ["shop.orders"])  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="is no Consumer"):
        client.register([print], ["shop.orders"])  # type: ignore[list-item]


def test_a_client_without_a_registration_does_not_wait_for_ever() -> None:
    with pytest.raises(SettingsError, match="nothing is registered"):
        DatabusClient(RELAY).run()
    with pytest.raises(SettingsError, match="nothing is registered"):
        asyncio.run(DatabusClient(RELAY).run_async())
