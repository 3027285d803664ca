from __future__ import annotations

import re
from pathlib import Path

import pytest

from databus.conf.settings import (
    HttpSettings,
    MaxScnSettings,
    PhysicalSourceSettings,
    RelaySettings,
    Settings,
    load_settings,
)

EXAMPLE = Path(__file__).resolve().parents[2] / "conf" / "relay.toml"


def test_the_commented_example_is_good_settings() -> None:
    settings = load_settings(EXAMPLE, RelaySettings)
    assert [p.name for p in settings.physical_sources] == ["shop"]


@pytest.mark.parametrize(
    "model", [RelaySettings, HttpSettings, MaxScnSettings, PhysicalSourceSettings]
)
def test_the_commented_example_names_every_setting(model: type[Settings]) -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    missing = [
        name
        for name in model.model_fields
        if not re.search(rf"\b{name}\b( =|\])", text) and name != "physical_sources"
    ]
    assert missing == []


def test_what_the_example_calls_a_default_is_the_default() -> None:
    example = load_settings(EXAMPLE, RelaySettings)
    assert example.http == HttpSettings.model_validate({})
    assert example.max_scn == MaxScnSettings.model_validate({})
