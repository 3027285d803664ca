"""Settings: sizes, unknown keys, and errors that name the key, the value and the rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from databus.conf.loading import build_settings, load_settings
from databus.conf.patterns import escaped
from databus.conf.reference import PAGES
from databus.conf.settings import (
    BackOffSettings,
    ClientSettings,
    HttpSettings,
    PhysicalSourceSettings,
    RelaySettings,
    Settings,
)
from databus.conf.units import parse_size_bytes
from databus.schemas.errors import SettingsError
from tools.repository import ROOT

SHOP = {"name": "shop", "uri": "sqlite:/shop.db", "sources": ["shop.orders"]}
RELAY = """
data_dir = "data"
[http]
port = 0
[[physical_sources]]
name = "shop"
uri = "sqlite:shop.db"
sources = ["shop.orders", { name = "shop.items", id = 7 }]
ring_bytes = "1MiB"
"""


def physical_source(**changed: Any) -> PhysicalSourceSettings:
    """Build a physical source's settings."""
    return build_settings({**SHOP, **changed}, PhysicalSourceSettings)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("4096", 4096),
        ("1K", 1024),
        ("64MiB", 64 << 20),
        ("64 MB", 64 << 20),
        ("64m", 64 << 20),
        ("2G", 2 << 30),
        ("1TiB", 1 << 40),
        (" 5 kib ", 5 << 10),
    ],
)
def test_a_size_is_a_number_with_or_without_a_unit(text: str, size_bytes: int) -> None:
    assert parse_size_bytes(text) == size_bytes


@given(st.integers(0, 1 << 50), st.sampled_from([("", 0), ("KiB", 10), ("MiB", 20), ("G", 30)]))
def test_any_size_is_read_as_it_is_written(number: int, unit: tuple[str, int]) -> None:
    assert parse_size_bytes(f"{number}{unit[0]}") == number << unit[1]


@pytest.mark.parametrize("text", ["", "MiB", "1.5M", "-1", "1 P", "1MiBs", "one", "1 M B"])
def test_what_is_no_size_is_refused_with_the_rule(text: str) -> None:
    with pytest.raises(SettingsError, match=r"ring_bytes = .*write a number of bytes, or one with"):
        physical_source(ring_bytes=text)


def test_a_size_may_be_a_plain_number() -> None:
    assert physical_source(ring_bytes=70_000).ring_bytes == 70_000


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"ring_bytes": "1K"}, ["ring_bytes = 1024", "greater than or equal to 65536"]),
        ({"name": "a b"}, ["name = 'a b'", "pattern"]),
        ({"sources": []}, ["sources = []", "at least 1"]),
        ({"epoch": 256}, ["epoch = 256", "less than or equal to 255"]),
        ({"poll_interval_s": 0}, ["poll_interval_s = 0", "greater than 0"]),
        ({"server_id": "x"}, ["server_id = 'x'", "write a number, without quotes"]),
        ({"colour": "red"}, ["colour is not a setting"]),
        ({"sources": [{"name": "a", "id": 0}]}, ["sources.0", "id = 0"]),
        ({"sources": [{"id": 3}]}, ["name is missing"]),
        ({"sources": ["shop.a,b"]}, ["sources = ", "'shop.a,b' cannot be captured", "a comma"]),
        ({"sources": [{"name": "shop.a\n"}]}, ["sources = ", "begins and ends with"]),
        ({"sources": ["shop.a\0b"]}, ["'shop.a\\x00b' cannot be captured", "control character"]),
        ({"sources": [" shop.a"]}, ["' shop.a' is no source name"]),
        ({"sources": [""]}, ["'' is no source name"]),
        ({"sources": ["42"]}, ["'42' is no source name", "DATABASE.TABLE"]),
        ({"uri": "mysql://a@b", "sources": ["shop"]}, ["'shop' is no table", "DATABASE.TABLE"]),
        ({"uri": "mysql://a@b", "sources": [".t"]}, ["'.t' is no table", "DATABASE.TABLE"]),
    ],
)
def test_an_error_names_the_key_the_value_and_the_rule(
    changed: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(SettingsError) as caught:
        physical_source(**changed)
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_source_may_be_listed_or_matched_by_a_pattern() -> None:
    settings = physical_source(uri="mysql://a@b", sources=["crm.a", "shop.*", "!shop.t*"])
    assert settings.source_names == ["crm.a"]
    for name, names in (("crm.a", ["crm.a"]), ("shop.x", ["crm.a", "shop.x"])):
        having = settings.with_source(name)
        assert having is not None
        assert having.source_names == names
    assert settings.with_source("shop.tmp") is None
    assert settings.with_source("crm.b") is None


@pytest.mark.parametrize(
    "table",
    [
        "a.b",
        "a b",
        "a`b",
        "a'b",
        'a"b',
        "a/b",
        "a%2Fb",
        "a#b?c=d&e",
        "\u65e5\u672c",
        "x" * 64,
        "..",
    ],
)
def test_a_table_may_have_any_other_name(table: str) -> None:
    name = f"shop.{table}"
    assert physical_source(uri="mysql://a@b", sources=[escaped(name)]).source_names == [name]


def test_every_wrong_key_is_named_at_once() -> None:
    with pytest.raises(SettingsError, match=r"epoch = -1.*; ring_byte is not a setting"):
        physical_source(epoch=-1, ring_byte=1)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        (
            {"physical_sources": [SHOP | {"ring": 1}]},
            "ring is not a setting; did you mean ring_bytes?",
        ),
        ({"http": {"prt": 1}}, "http.prt is not a setting; did you mean port?"),
        ({"coordinater": "x"}, "coordinater is not a setting; did you mean coordinator?"),
    ],
)
def test_a_setting_that_is_misspelt_gets_the_right_spelling(
    wrong: dict[str, Any], meant: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        build_settings({"data_dir": "d", "physical_sources": [SHOP]} | wrong, RelaySettings)
    assert meant in str(caught.value)


def test_the_value_of_an_unknown_key_is_not_repeated() -> None:
    with pytest.raises(SettingsError) as caught:
        physical_source(password="hunter2")
    assert "password is not a setting" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_file_becomes_settings_with_defaults(tmp_path: Path) -> None:
    (tmp_path / "relay.toml").write_text(RELAY)
    settings = load_settings(tmp_path / "relay.toml", RelaySettings)
    assert settings.http == HttpSettings(port=0)
    (shop,) = settings.physical_sources
    assert shop.ring_bytes == 1 << 20
    assert shop.start == "latest"


def test_a_start_is_an_scn_as_a_number_or_as_text() -> None:
    for start in (5, "5"):
        assert (
            build_settings({"relays": ["http://r:1"], "start": start}, ClientSettings).start == "5"
        )
        assert physical_source(start=start).start == "5"
    with pytest.raises(SettingsError, match="start = True"):
        build_settings({"relays": ["http://r:1"], "start": True}, ClientSettings)


def test_relative_paths_are_taken_from_the_files_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my folder"
    folder.mkdir()
    (folder / "relay.toml").write_text(RELAY.replace("[http]", 'schema_dir = "/made"\n[http]'))
    settings = load_settings(folder / "relay.toml", RelaySettings)
    assert settings.data_dir == folder / "data"
    assert settings.schema_dir == Path("/made")
    assert settings.physical_sources[0].uri == f"sqlite:{tmp_path}/my%20folder/shop.db"


@pytest.mark.parametrize("uri", ["sqlite:/shop.db", "sqlite:///shop.db", "mysql://me@host:3306"])
def test_a_uri_without_a_relative_path_stays_as_it_is(tmp_path: Path, uri: str) -> None:
    (tmp_path / "relay.toml").write_text(RELAY.replace("sqlite:shop.db", uri))
    settings = load_settings(tmp_path / "relay.toml", RelaySettings)
    assert settings.physical_sources[0].uri == uri


def test_paths_stay_as_they_are_without_a_file() -> None:
    settings = build_settings({"data_dir": "data", "physical_sources": [SHOP]}, RelaySettings)
    assert settings.data_dir == Path("data")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"data_dir = ", r"relay\.toml: Invalid value"),
        (b"\xff\xfe", r"relay\.toml: .*can't decode"),
        (b"", r"relay\.toml: data_dir is missing; \[\[physical_sources\]\] is missing"),
        (None, r"No such file or directory.*relay\.toml"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, content: bytes | None, problem: str
) -> None:
    if content is not None:
        (tmp_path / "relay.toml").write_bytes(content)
    with pytest.raises(SettingsError, match=problem):
        load_settings(tmp_path / "relay.toml", RelaySettings)


def test_settings_never_change() -> None:
    settings = HttpSettings()
    with pytest.raises(ValidationError, match="frozen"):
        settings.port = 1  # type: ignore[misc]


@pytest.mark.parametrize("model", [RelaySettings, ClientSettings, BackOffSettings])
def test_every_setting_is_described(model: type[Settings]) -> None:
    def without_description(schema: dict[str, Any]) -> list[str]:
        return [name for name, field in schema["properties"].items() if "description" not in field]

    schema = model.model_json_schema()
    models = [schema, *schema.get("$defs", {}).values()]
    assert [name for model in models for name in without_description(model)] == []


@pytest.mark.parametrize("path", sorted((ROOT / "conf").glob("*.toml")), ids=lambda path: path.name)
def test_every_example_file_is_right(path: Path) -> None:
    model, _ = PAGES[path.stem]
    assert load_settings(path, model).model_fields_set


def test_what_is_wrong_inside_a_table_is_said_once_and_not_of_the_list_around_it() -> None:
    with pytest.raises(SettingsError) as raised:
        build_settings({"data_dir": "d", "physical_sources": [SHOP | {"bad": 1}]}, RelaySettings)
    assert str(raised.value) == "settings: physical_sources.0.bad is not a setting"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"name": "a", "id": 99999}, ".id = 99999: Input should be less than or equal to 32767"),
        ({"name": "a", "colour": 1}, ".colour is not a setting"),
        ({"id": 1}, ".name is missing"),
        (5, " = 5: Input should be a valid string"),
    ],
)
def test_a_wrong_source_is_explained_in_the_form_that_it_has(source: object, said: str) -> None:
    physical = {"name": "a", "uri": "sqlite:a", "sources": ["x.b", source]}
    raw = {"data_dir": ".", "physical_sources": [physical]}
    with pytest.raises(SettingsError) as raised:
        build_settings(raw, RelaySettings)
    assert str(raised.value) == f"settings: physical_sources.0.sources.1{said}"


def test_a_rule_is_said_in_our_words_alone() -> None:
    with pytest.raises(SettingsError) as raised:
        physical_source(ring_bytes="64Mo")
    assert str(raised.value).startswith("settings: ring_bytes = '64Mo': write a number of bytes")


def test_a_relay_log_is_off_unless_asked_for_and_has_a_folder_of_its_own() -> None:
    assert physical_source().log is None
    assert physical_source(log={}).log is not None
    crm = {"name": "crm", "uri": "sqlite:/crm.db", "sources": ["crm.people"]}
    for folders in (("a", "b"), (None, None)):
        logs = [{} if folder is None else {"dir": folder} for folder in folders]
        blocks = [SHOP | {"log": logs[0]}, crm | {"log": logs[1]}]
        build_settings({"data_dir": "x", "physical_sources": blocks}, RelaySettings)
    blocks = [SHOP | {"log": {"dir": "a"}}, crm | {"log": {"dir": "a"}}]
    with pytest.raises(SettingsError, match="dir a is that of two physical sources"):
        build_settings({"data_dir": "x", "physical_sources": blocks}, RelaySettings)


def test_a_client_certificate_for_the_database_needs_its_authority() -> None:
    source = {"name": "shop", "uri": "mysql://a@b", "sources": ["shop.orders"]}
    for key in ("tls_cert", "tls_key"):
        with pytest.raises(SettingsError, match=f"{key} = .*need tls_ca, which puts TLS on"):
            build_settings({**source, key: "client.pem"}, PhysicalSourceSettings)
    build_settings({**source, "tls_ca": "ca.pem", "tls_cert": "c.pem"}, PhysicalSourceSettings)


def test_a_physical_source_knows_the_file_that_it_stands_in_whatever_is_changed_of_it(
    tmp_path: Path,
) -> None:
    file = tmp_path / "relay.toml"
    file.write_text(RELAY, encoding="utf-8")
    (shop,) = load_settings(file, RelaySettings).physical_sources
    assert shop.model_copy(update={"epoch": 1}).file == file
    assert PhysicalSourceSettings(**SHOP).file is None
