"""The sinks `elasticsearch` and `opensearch`, on a real OpenSearch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from databus.client.sinks.contract import Change, Opening
from databus.client.sinks.errors import SinkError, SinkRefusedError, SinkUnavailableError
from databus.client.sinks.loading import sink_maker
from databus.client.sinks.ready.search.sink import SearchSink
from databus.schemas.errors import SettingsError
from tests.client.sinks.answering import answering
from tests.client.sinks.changes import made, moved
from tests.client.sinks.search_server import PrivateOpenSearch

pytest_plugins = ["tests.client.sinks.search_fixtures"]
pytestmark = pytest.mark.opensearch

SCN = (1 << 62) + 7  # as large as SCNs become


@pytest.fixture
def open_sink(search: PrivateOpenSearch) -> Iterator[Any]:
    """Return what opens a sink on the emptied server."""
    sinks: list[SearchSink] = []

    def opened(**options: Any) -> SearchSink:
        sink = SearchSink(SearchSink.Options.model_validate({"url": search.url, **options}))
        sinks.append(sink)
        assert sink.open(Opening("test", "shop")) is None
        return sink

    yield opened
    for sink in sinks:
        sink.close()


def put(sink: SearchSink, *changes: Change) -> None:
    sink.write(changes)
    sink.flush()


def insert(key: Any, scn: int = SCN, **values: Any) -> Change:
    return made("insert", key, scn=scn, **values)


def test_rows_are_documents(search: PrivateOpenSearch, open_sink: Any) -> None:
    sink = open_sink()
    put(sink, insert(1, s="ä", price=Decimal("1.50"), gone=None), insert("a:b", source="Shop.Käse"))
    assert search.documents("shop.orders") == {
        "1": {"id": 1, "s": "ä", "price": "1.50", "gone": None, "databus_scn": SCN}
    }
    assert list(search.documents("shop.k%C3%A4se")) == ["a%3Ab"]
    put(sink, made("update", 1, scn=SCN + 1, s="b"), insert(2), *moved(2, 3, s="c"))
    assert search.documents("shop.orders")["1"] == {"id": 1, "s": "b", "databus_scn": SCN + 1}
    put(sink, made("delete", 1, scn=SCN + 2), made("delete", 99, scn=SCN + 2))
    assert "1" not in search.documents("shop.orders")


def test_what_comes_again_or_too_late_changes_nothing(
    search: PrivateOpenSearch, open_sink: Any
) -> None:
    changes = [
        insert(1, 10, v=1),
        made("update", 1, scn=12, v=2),
        insert(2, 13, v=1),
        made("delete", 2, scn=14),
        made("update", 1, scn=15, v=3),
        made("update", 1, scn=15, v=4),  # of the same transaction
    ]
    sink = open_sink()
    put(sink, *changes)
    wanted = {"1": {"id": 1, "v": 4, "databus_scn": 15}}
    assert search.documents("shop.orders") == wanted
    for change in changes:  # one by one, as for a row that is looked for
        put(sink, change)
        if change is not changes[4]:
            assert search.documents("shop.orders") == wanted
    put(sink, *changes[:3])  # another process, which is late
    assert search.documents("shop.orders") == wanted


def test_a_truncate_deletes_what_was_there_and_nothing_newer(
    search: PrivateOpenSearch, open_sink: Any
) -> None:
    sink = open_sink()
    put(sink, made("truncate", 0, scn=9))  # there is no such index yet
    rows = [insert(key, 10) for key in range(20)]
    truncate, later = made("truncate", 0, scn=11), insert(5, 12, v="new")
    put(sink, *rows, insert(1, 10, source="shop.others"))
    put(sink, insert(20, 10), truncate, later)
    wanted = {"5": {"id": 5, "v": "new", "databus_scn": 12}}
    for _ in range(2):
        assert search.documents("shop.orders") == wanted
        assert list(search.documents("shop.others")) == ["1"]
        put(sink, *rows, truncate, later)  # after a restart
    put(sink, truncate)  # by another process, which is late
    assert search.documents("shop.orders") == wanted


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"scn_field": ""}, "there is no scn_field"),
        ({"index": "all"}, "does not say that one index"),
        ({"index": "{source}-{year}"}, "does not say that one index"),
        ({"index": "{table}"}, "does not say that one index"),
    ],
)
def test_a_truncate_of_part_of_an_index_is_refused(
    open_sink: Any, options: dict[str, Any], problem: str
) -> None:
    truncate = made("truncate", 0, scn=11)
    with pytest.raises(SinkRefusedError, match=problem) as refused:
        put(open_sink(**options), truncate)
    assert refused.value.change is truncate


def test_index_id_and_routing_are_templates_and_a_row_leaves_its_old_place(
    search: PrivateOpenSearch, open_sink: Any
) -> None:
    sink = open_sink(index="{table}-{year}", id="{table}/{id}", routing="{shop}", scn_field="")
    put(sink, insert(1, year=2025, shop="a"), insert(2, year=2025, shop="b"))
    assert search.ask("GET", "/orders-2025/_doc/orders%2F1?routing=a")["_routing"] == "a"
    update = made("update", 1, scn=SCN + 1, year=2026, shop="a", before_year=2025, before_shop="a")
    routed = made("update", 2, scn=SCN + 1, year=2025, shop="c", before_year=2025, before_shop="b")
    put(sink, update, routed)
    assert search.documents("orders-2025") == {"orders/2": {"id": 2, "year": 2025, "shop": "c"}}
    assert search.documents("orders-2026") == {"orders/1": {"id": 1, "year": 2026, "shop": "a"}}
    put(sink, made("delete", 1, scn=SCN + 2, before_year=2026, before_shop="a"))
    assert search.documents("orders-2026") == {}


def test_an_index_template_is_put_and_a_row_that_its_mapping_refuses_is_named(
    search: PrivateOpenSearch, open_sink: Any, tmp_path: Path
) -> None:
    properties = {"v": {"type": "integer"}, "price": {"type": "double"}}
    template = {
        "index_patterns": ["shop.*"],
        "template": {"mappings": {"properties": properties}},
    }
    file = tmp_path / "template.json"
    file.write_text(json.dumps(template))
    sink = open_sink(index_template=file)
    wrong = insert(2, v="text")
    with pytest.raises(
        SinkRefusedError, match=r"shop\.orders/2: mapper_parsing_exc.*'text'|\"text\""
    ) as refused:
        put(sink, insert(1, v=1, price=Decimal("1.50")), wrong, insert(3, v=3))
    assert refused.value.change is wrong
    assert sorted(search.documents("shop.orders")) == ["1", "3"]  # comes again, and is harmless
    mapping = search.ask("GET", "/shop.orders/_mapping")["shop.orders"]["mappings"]["properties"]
    assert mapping["price"] == {"type": "double"}
    file.write_text('{"index_patterns": 1}')
    with pytest.raises(SinkError, match="_index_template answered 400"):
        open_sink(index_template=file)
    search.ask("DELETE", "/_index_template/databus-test")


def test_a_request_has_about_as_many_bytes_as_wanted_and_a_larger_row_is_refused(
    search: PrivateOpenSearch, open_sink: Any
) -> None:
    sink = open_sink(bulk_bytes=100_000)
    put(sink, *(insert(key, s="x" * 20_000) for key in range(40)))  # 800 kB, and 300 kB are taken
    assert len(search.documents("shop.orders")) == 40
    large = insert(99, s="x" * 400_000)
    with pytest.raises(SinkRefusedError, match="answered 413") as refused:
        put(sink, large)
    assert refused.value.change is large


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (insert("x" * 513), "the id of its document has 513 bytes"),
        (insert(""), "the id of its document has 0 bytes"),
        (insert(1, databus_scn=1), "a column has the name of scn_field"),
    ],
)
def test_what_is_no_document_is_a_refused_row(open_sink: Any, change: Change, problem: str) -> None:
    with pytest.raises(SinkRefusedError, match=problem) as refused:
        put(open_sink(), change)
    assert refused.value.change is change


def test_an_index_with_an_impossible_name_refuses_the_row(open_sink: Any) -> None:
    change = insert(1)
    with pytest.raises(SinkRefusedError, match="invalid_index_name_exception") as refused:
        put(open_sink(index="_{table}"), change, insert(2))
    assert refused.value.change is change


@pytest.mark.parametrize(
    "block",
    [
        "index.blocks.read_only_allow_delete",  # the server's own, when its disk is full
        "index.blocks.write",
    ],
)
def test_an_index_that_is_blocked_is_waited_for(
    search: PrivateOpenSearch, open_sink: Any, block: str
) -> None:
    sink = open_sink()
    put(sink, insert(1))
    search.ask("PUT", "/shop.orders/_settings", {block: True})
    with pytest.raises(SinkUnavailableError, match="cluster_block_exception"):
        put(sink, insert(2))
    search.ask("PUT", "/shop.orders/_settings", {block: None})
    sink.flush()
    assert sorted(search.documents("shop.orders")) == ["1", "2"]


def test_a_server_that_is_away_is_unavailable() -> None:
    options = SearchSink.Options.model_validate({"url": "http://127.0.0.1:1"})
    with closing(SearchSink(options)) as sink:
        sink.open(Opening("test", "shop"))
        with pytest.raises(SinkUnavailableError, match="refused"):
            put(sink, insert(1))


def test_a_server_that_is_busy_says_when_to_come_again() -> None:
    item = {"_index": "a", "_id": "1", "status": 429, "error": {"type": "es_rejected"}}
    busy = json.dumps({"errors": True, "items": [{"index": item}]})
    for status, body, wait_s in ((429, "", 7.0), (503, "", 7.0), (200, busy, None)):
        with answering(status, {"Retry-After": "7"}, body) as (url, _):
            options = SearchSink.Options.model_validate({"url": url})
            with (
                closing(SearchSink(options)) as sink,
                pytest.raises(SinkUnavailableError) as failure,
            ):
                put(sink, insert(1))
            assert failure.value.retry_after_s == wait_s


def test_a_login_is_sent_and_one_that_fails_is_no_rows_fault(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_text("open sesame\n")
    logins: dict[str, dict[str, Any]] = {
        "Basic bWU6b3BlbiBzZXNhbWU=": {"user": "me", "password_file": file},
        "ApiKey open sesame": {"api_key_file": file},
    }
    with answering(401, {}, "who is it") as (url, seen):
        for wanted, options in logins.items():
            given = SearchSink.Options.model_validate({"url": url, **options})
            with (
                closing(SearchSink(given)) as sink,
                pytest.raises(SinkUnavailableError, match=r"401.*who is it") as failure,
            ):
                put(sink, insert(1))
            assert seen[-1] == wanted
            assert "sesame" not in str(failure.value)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"url": "https://me:secret@127.0.0.1"}, "url"),
        ({"index": "{a!r}"}, "write the names of columns"),
        ({"user": "me"}, "its password_file is missing"),
        ({"user": "me", "api_key_file": "key"}, "not both"),
        ({"index_template": "missing.json"}, "index_template missing.json: .*No such file"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem) as refused:
        sink_maker("opensearch", options)()
    assert "secret" not in str(refused.value)


def test_several_lanes_may_write(open_sink: Any, search: PrivateOpenSearch) -> None:
    first, second = open_sink(), open_sink()
    put(first, insert(1, 5, v="new"))
    put(second, insert(1, 4, v="old"))  # overtaken
    assert search.documents("shop.orders")["1"]["v"] == "new"
    put(second, replace(insert(1, 5, v="new"), index=1))
    assert search.documents("shop.orders")["1"]["v"] == "new"
