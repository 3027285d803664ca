"""What the relay knows of its clients of Canal: what each has acknowledged, also of those away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from databus.relay.serving.canal.door import kept_places
from tests.relay.fakes import wait_until
from tests.relay.serving.canal.door.served_canal import ServedCanal, drain, rows

NAME = "canal:example:1001"
SOURCES = ["shop.person", "shop.orders"]
SHOP = {"name": "shop", "uri": "fake:", "sources": SOURCES, "log": {"hold": [NAME]}}


@pytest.fixture
def canal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedCanal]:
    monkeypatch.setattr(kept_places, "EVERY_S", 0.02)
    found = ServedCanal(tmp_path, {"physical_sources": [SHOP]})
    yield found
    found.close()


def seen(canal: ServedCanal) -> dict[str, Any]:
    clients = json.loads(canal.get("/api/v1/clients").body)["clients"]
    return next((one for one in clients if one["name"] == NAME), {})


def place(canal: ServedCanal) -> tuple[str, str | None] | None:
    """Return by what the client's place is known, and the SCN of it."""
    places = seen(canal).get("positions", [])
    return (places[0]["by"], places[0]["scn"]) if places else None


def held_after(canal: ServedCanal) -> int | None:
    recorder = canal.relay.physical_sources["shop"].recorder
    assert recorder is not None
    return recorder.status.held_after_scn


def test_a_client_is_where_it_has_acknowledged_and_not_where_it_was_sent(
    canal: ServedCanal,
) -> None:
    canal.put(*(rows(scn) for scn in range(1, 7)))
    client = canal.client()
    assert client.get().keys == [10, 20, 30, 40, 50, 60]
    wait_until(lambda: place(canal) == ("kept", "0"))
    client.ack(1)
    wait_until(lambda: place(canal) == ("kept", "6"))


def test_a_client_that_is_away_when_the_relay_starts_is_listed(canal: ServedCanal) -> None:
    canal.put(rows(1))
    drain(canal.client())
    wait_until(lambda: place(canal) == ("kept", "1"))
    canal.close_and_open_again()
    wait_until(lambda: place(canal) == ("kept", "1"))
    found = seen(canal)
    assert (found["state"], found["lastSeenAt"]) == ("silent", None)
    assert [one["clientId"] for one in canal.view()["destinations"][0]["consumers"]] == [1001]
    canal.client().get()
    wait_until(lambda: seen(canal)["lastSeenAt"] is not None)


def test_the_log_holds_what_a_client_has_not_acknowledged(canal: ServedCanal) -> None:
    canal.put(rows(1), rows(2))
    wait_until(lambda: held_after(canal) == -1)  # nobody knows where it would go on
    client = canal.client()
    drain(client)
    wait_until(lambda: held_after(canal) == 2)
    canal.put(rows(3))
    client.get()
    canal.close_and_open_again()
    canal.put(rows(4))
    wait_until(lambda: held_after(canal) == 2)


def test_a_client_that_unsubscribes_has_no_place_any_more(canal: ServedCanal) -> None:
    canal.put(rows(1))
    client = canal.client()
    drain(client)
    wait_until(lambda: place(canal) == ("kept", "1"))
    client.unsubscribe()
    wait_until(lambda: place(canal) != ("kept", "1"))
    canal.close_and_open_again()
    canal.put(rows(2))
    assert seen(canal) == {}


def test_a_cursor_that_cannot_be_read_hides_no_other_client(canal: ServedCanal) -> None:
    canal.put(rows(1))
    drain(canal.client())
    wait_until(lambda: place(canal) == ("kept", "1"))
    canal.close()
    folder = canal.settings.data_dir / "canal" / "example"
    (folder / "1000.json").write_text("{")
    (folder / "notes.json").write_text("{}")
    canal.open()
    wait_until(lambda: place(canal) == ("kept", "1"))
