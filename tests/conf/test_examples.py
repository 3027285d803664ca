from __future__ import annotations

import re
from pathlib import Path

import pytest

from databus.conf.column_settings import ColumnSettings
from databus.conf.loading import build_settings, load_settings
from databus.conf.settings import (
    BackOffSettings,
    BootstrapHttpSettings,
    BootstrapSettings,
    ClientSettings,
    HttpSettings,
    MaxScnSettings,
    PairSettings,
    PhysicalSourceSettings,
    RelaySettings,
    ServerAccessSettings,
    Settings,
)
from databus.conf.sink_settings import (
    FailureRuleSettings,
    FailureSettings,
    FlushSettings,
    SinkSettings,
    SinksSettings,
    SinkTableSettings,
)
from databus.schemas.errors import SettingsError
from tools.repository import ROOT

CONF = ROOT / "conf"
RELAY = CONF / "relay.toml"
CLIENT = CONF / "client.toml"
BOOTSTRAP = CONF / "bootstrap.toml"
SINK = CONF / "sink.toml"


def test_the_commented_examples_are_good_settings() -> None:
    settings = load_settings(RELAY, RelaySettings)
    assert [p.name for p in settings.physical_sources] == ["shop"]
    assert load_settings(CLIENT, ClientSettings).relays == ("http://127.0.0.1:11115",)


@pytest.mark.parametrize(
    ("example", "model"),
    [
        (RELAY, RelaySettings),
        (RELAY, HttpSettings),
        (RELAY, MaxScnSettings),
        (RELAY, PairSettings),
        (RELAY, PhysicalSourceSettings),
        (RELAY, ColumnSettings),
        (CLIENT, ClientSettings),
        (CLIENT, BackOffSettings),
        (CLIENT, ServerAccessSettings),
        (BOOTSTRAP, BootstrapSettings),
        (BOOTSTRAP, BootstrapHttpSettings),
        (BOOTSTRAP, BackOffSettings),
        (BOOTSTRAP, ServerAccessSettings),
        (SINK, SinksSettings),
        (SINK, SinkSettings),
        (SINK, SinkTableSettings),
        (SINK, FlushSettings),
        (SINK, FailureSettings),
        (SINK, FailureRuleSettings),
    ],
)
def test_the_commented_examples_name_every_setting(example: Path, model: type[Settings]) -> None:
    text = example.read_text(encoding="utf-8")
    missing = [
        name
        for name in model.model_fields
        if not re.search(rf"\b{name}\b( =|\])", text)
        # What blocks or a list in the file become.
        and name not in ("physical_sources", "standby_uris", "sinks", "tables")
    ]
    assert missing == []


def test_what_the_examples_call_a_default_is_the_default() -> None:
    relay = load_settings(RELAY, RelaySettings)
    assert relay.http == HttpSettings.model_validate({})
    assert relay.max_scn == MaxScnSettings.model_validate({})
    client = load_settings(CLIENT, ClientSettings)
    plain = ClientSettings(relays=client.relays, checkpoint_dir=client.checkpoint_dir)
    assert client == plain
    pair = load_settings(BOOTSTRAP, BootstrapSettings)
    only_required = BootstrapSettings(
        data_dir=pair.data_dir, relays=pair.relays, physical_sources=pair.physical_sources
    )
    assert pair == only_required
    assert pair.http.port == 11116
    sinks = load_settings(SINK, SinksSettings)
    assert sinks == SinksSettings(data_dir=sinks.data_dir, relays=sinks.relays, sinks=sinks.sinks)
    sink = sinks.sinks[0]
    given = {"name": sink.name, "kind": sink.kind, "sources": sink.sources}
    assert sink == SinkSettings(**given, options=sink.options, tables=sink.tables)


def test_the_bootstrap_example_has_the_physical_sources_of_the_relays() -> None:
    relay = load_settings(RELAY, RelaySettings)
    pair = load_settings(BOOTSTRAP, BootstrapSettings)
    assert [p.name for p in pair.physical_sources] == [p.name for p in relay.physical_sources]


def test_a_physical_source_listed_twice_is_refused() -> None:
    block = {"name": "shop", "uri": "sqlite:/shop.db", "sources": ["shop.orders"]}
    raw = {"data_dir": "d", "relays": ["http://r"], "physical_sources": [block, block]}
    with pytest.raises(SettingsError, match="each physical source is listed once"):
        build_settings(raw, BootstrapSettings)
