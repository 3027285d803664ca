"""The settings that a relay runs with, as admins see them: all, and no password."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from databus.relay.admin.page_parts.settings_view import without_secrets
from tests.relay.fakes import ServedRelay


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("mysql://databus@db:3306/x", "mysql://databus@db:3306/x"),
        ("mysql://databus:p@ss/w0rd@db:3306", "mysql://databus:…@db:3306"),
        ("s3://b/x?region=eu&secret_key=abc&x=1", "s3://b/x?region=eu&secret_key=…&x=1"),
        ("s3://b?Password=abc", "s3://b?Password=…"),
        ("/run/secrets/password", "/run/secrets/password"),
    ],
)
def test_a_url_is_shown_without_what_is_secret(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


def test_every_setting_is_there_with_its_value_and_whether_it_is_a_default(tmp_path: Path) -> None:
    relay = ServedRelay(tmp_path, coordinator="mysql://lease:s3cret-word@127.0.0.1:9/x")
    try:
        answer = relay.get("/api/v1/settings")
        found = {one["key"]: one for one in json.loads(answer.body)["settings"]}
    finally:
        relay.close()
    assert b"s3cret-word" not in answer.body
    assert found["coordinator"]["value"] == "mysql://lease:…@127.0.0.1:9/x"
    assert (found["http.port"]["value"], found["http.port"]["isSet"]) == ("0", True)
    sources = found["physical_sources.shop.sources"]
    assert (sources["value"], sources["isSet"]) == ("shop.person, shop.orders", True)
    assert found["http.host"]["isSet"] is False
    ring = found["physical_sources.shop.ring_bytes"]
    assert (ring["isSet"], int(ring["value"]) > 0) == (False, True)
