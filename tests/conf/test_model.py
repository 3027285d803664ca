"""Time zones in settings are those of this machine."""

from __future__ import annotations

import pytest

from databus.conf.doors.canal_settings import CanalSettings
from databus.conf.loading import build_settings
from databus.conf.model import known_zone
from databus.schemas.errors import SettingsError


@pytest.mark.parametrize("name", ["UTC", "Asia/Shanghai", "Europe/Paris"])
def test_zones_of_this_machine_are_known(name: str) -> None:
    assert known_zone(name) == name


@pytest.mark.parametrize("name", ["Mars/Base", "", "/etc/passwd", "../UTC", "UTC\0", "Europe"])
def test_anything_else_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match="is no time zone of this machine"):
        known_zone(name)
    raw = {"time_zone": name, "destinations": [{"name": "a", "physical_sources": ["shop"]}]}
    with pytest.raises(SettingsError, match=r"time_zone.* is no time zone"):
        build_settings(raw, CanalSettings)
