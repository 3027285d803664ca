"""The options of `format("databus")`: what is taken, and what is refused in which words."""

from __future__ import annotations

import pytest

from databus.client.spark.options import Mode, option_names, parse_options
from databus.conf.named_places import ScnPlace, TimePlace, Word
from databus.schemas.errors import SettingsError
from databus.schemas.filters import ModFilter

SOURCES = {"sources": "shop.orders"}


def test_names_are_taken_in_any_case_as_spark_hands_them_over() -> None:
    parsed = parse_options({"SOURCES": "a.b, c.d", "maxrowspertrigger": "5", "BatchRows": "7"})
    assert parsed.sources == ("a.b", "c.d")
    assert (parsed.max_rows_per_trigger, parsed.batch_rows) == (5, 7)


def test_load_with_a_path_names_the_sources() -> None:
    assert parse_options({"path": "shop.orders"}).sources == ("shop.orders",)


def test_a_wrong_option_is_refused_with_the_list_of_the_right_ones() -> None:
    with pytest.raises(SettingsError) as refused:
        parse_options({**SOURCES, "relay": "http://x"})
    assert "no option relay" in str(refused.value)
    for name in option_names():
        assert name in str(refused.value)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", Word.EARLIEST),
        ("latest", Word.LATEST),
        ("beginning", Word.BEGINNING),
        ("17", ScnPlace(17)),
        ("2026-11-21T10:00:00Z", TimePlace(1_795_255_200_000_000_000)),
        ("2026-11-21T10:00:00", TimePlace(1_795_255_200_000_000_000)),
    ],
)
def test_a_start_is_a_word_an_scn_or_a_time(text: str, start: object) -> None:
    assert parse_options({**SOURCES, "start": text}).start == start


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "sources is missing"),
        ({"sources": " , "}, "sources"),
        (
            {**SOURCES, "start": "yesterday"},
            "'yesterday' names no place: write",
        ),
        ({**SOURCES, "start": str(1 << 63)}, "start"),
        ({**SOURCES, "shards": "0"}, "shards = '0'"),
        ({**SOURCES, "layout": "rows"}, "layout = 'rows'"),
        ({**SOURCES, "mode": "stream"}, "mode = 'stream'"),
        ({**SOURCES, "filters": "{"}, "filters"),
        ({**SOURCES, "relays": "ftp://a"}, "relays.*'ftp://a' is not a URL like http://"),
        ({**SOURCES, "bootstrapServers": "http://a,b"}, "bootstrapServers.*'b' is not a URL"),
        ({**SOURCES, "where": "a = 1"}, r"where is only for mode = table and database.*DataFrame$"),
        ({**SOURCES, "columns": "a"}, "columns is only for mode = table and database"),
        ({**SOURCES, "asOf": "3"}, "asOf is only for mode = table, and this is mode = changes$"),
        ({**SOURCES, "mode": "table", "until": "3"}, "until is only for mode = changes"),
        ({**SOURCES, "mode": "table", "settings": "a"}, "settings is only for mode = database"),
        ({**SOURCES, "filters": '{"shop.people": {"partitionType": "NONE"}}'}, "shop.people"),
    ],
)
def test_a_wrong_value_is_refused_by_name(options: dict[str, str], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        parse_options(options)


def test_filters_are_the_wires_with_names_in_place_of_ids() -> None:
    text = (
        '{"shop.orders": {"partitionType": "MOD", "filters": '
        '[{"numBuckets": 4, "bktRange": {"start": 1, "end": 2}}]}}'
    )
    parsed = parse_options({**SOURCES, "filters": text})
    (one,) = parsed.filters["shop.orders"].filters
    assert one == ModFilter(4, 1, 2)


def test_changes_are_what_is_read_unless_a_table_is_asked_for() -> None:
    assert parse_options(SOURCES).mode is Mode.CHANGES


def test_token_and_authority_may_stand_in_the_environment() -> None:
    environ = {"DATABUS_TOKEN_FILE": "/run/token", "DATABUS_TLS_CA": "/etc/ca.pem"}
    shown = parse_options({"sources": "shop.orders"}, environ).access.settings
    assert (str(shown.token_file), str(shown.tls_ca)) == ("/run/token", "/etc/ca.pem")
    given = {"sources": "shop.orders", "tokenEnv": "TOKEN", "tlsCa": "/other.pem"}
    shown = parse_options(given, environ).access.settings
    assert (shown.token_file, shown.token_env, str(shown.tls_ca)) == (None, "TOKEN", "/other.pem")


def test_there_is_one_token() -> None:
    given = {"sources": "shop.orders", "tokenEnv": "TOKEN", "tokenFile": "/run/token"}
    with pytest.raises(SettingsError, match="tokenFile or tokenEnv, not both"):
        parse_options(given, {})
