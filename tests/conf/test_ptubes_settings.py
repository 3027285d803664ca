"""The settings of what serves Ptubes' clients: off, on loopback, and of what is captured."""

from __future__ import annotations

from typing import Any

import pytest

from databus.conf.loading import build_settings
from databus.conf.settings import RelaySettings
from databus.schemas.errors import SettingsError

SOURCE = {"name": "shop", "uri": "sqlite:/shop.db", "sources": ["main.orders"]}
TASK = {"name": "reader", "physical_source": "shop"}


def load(**ptubes: Any) -> RelaySettings:
    raw: dict[str, Any] = {"data_dir": "/data", "physical_sources": [SOURCE]}
    if ptubes:
        raw["ptubes"] = {"reader_tasks": [TASK]} | ptubes
    return build_settings(raw, RelaySettings)


def test_they_are_off_and_then_on_loopback() -> None:
    assert load().ptubes is None
    ptubes = load(port=1).ptubes
    assert ptubes is not None
    assert (ptubes.host, ptubes.open_to_all) == ("127.0.0.1", False)
    assert load(host="0.0.0.0", open_to_all=True).ptubes is not None


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"host": "0.0.0.0"}, "open_to_all"),
        ({"time_zone": "Mars/Base"}, "no time zone"),
        ({"reader_tasks": []}, "reader_tasks"),
        ({"reader_tasks": [TASK, TASK]}, "more than once"),
        ({"reader_tasks": [TASK | {"physical_source": "x"}]}, "no physical source x"),
        ({"reader_tasks": [TASK | {"tables": ["main.x"]}]}, "does not capture main.x"),
        ({"reader_tasks": [TASK | {"key_columns": {"main.x": ["a"]}}]}, "does not capture main.x"),
        ({"reader_tasks": [TASK | {"name": "a b"}]}, "name"),
    ],
)
def test_what_cannot_be_is_refused_by_name(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        load(**changes)
