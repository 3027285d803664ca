"""Which environment variables have secrets."""

from __future__ import annotations

from pathlib import Path

from databus.client.sinks.isolated.secret_variables import secret_variables
from databus.conf.loading import build_settings
from databus.conf.settings import RelaySettings
from databus.conf.sink_settings import SinksSettings


def test_the_variables_of_sinks_and_of_a_relay_are_found_wherever_they_are_named(
    tmp_path: Path,
) -> None:
    sinks = {
        "data_dir": tmp_path,
        "relays": ["http://127.0.0.1:1"],
        "access": {"token_env": "TOKEN"},
        "http": {"reader_token_env": "READER", "admin_token_env": "ADMIN"},
        "sinks": [{"name": "a", "kind": "print", "sources": ["x.y"], "options": {"x_env": "OWN"}}],
    }
    assert secret_variables(build_settings(sinks, SinksSettings)) == {"TOKEN", "READER", "ADMIN"}
    source = {"name": "shop", "sources": ["shop.a"], "uri": "mysql://u@127.0.0.1"}
    relay = {"data_dir": tmp_path, "physical_sources": [{**source, "password_env": "PASSWORD"}]}
    assert secret_variables(build_settings(relay, RelaySettings)) == {"PASSWORD"}
