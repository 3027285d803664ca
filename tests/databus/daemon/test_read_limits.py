"""A reader's token that is for some sources reads those, and is refused everything else by name."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from databus.client import DatabusClient
from databus.conf.loading import build_settings
from databus.conf.settings import HttpSettings, PhysicalSourceSettings, ServerAccessSettings
from databus.daemon.access import Role
from databus.daemon.http.openapi import DOCUMENT_PATH
from databus.daemon.tokens import has_whole_reader, make_access, read_token
from databus.relay.serving.databus.handlers import COMMANDS
from databus.relay.sources.source import TableDefined
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode
from databus.schemas.errors import SettingsError
from databus.schemas.event.control import statement_of
from databus.schemas.event.event import Event
from databus.schemas.protocol import Header
from databus.schemas.stream.stream_reader import walk
from tests import PATIENCE_S
from tests.bootstrap.serving import ServedStore
from tests.bootstrap.walking import snapshot_at
from tests.databus.daemon.test_access import bearer, said, write_tokens
from tests.relay.fakes import ORDERS, PERSON, Answer, ServedRelay, insert, transaction

ALL, SOME, ADMIN = "a-token-for-everything", "a-token-for-persons", "a-token-for-admins"
FIRST = Checkpoint.flexible().to_json()
SECRET = b"s3cr3t"


@contextmanager
def tokens(folder: Path, line: str = "shop.* !*.orders") -> Iterator[dict[str, Path]]:
    readers = write_tokens(folder / "readers", ALL, f"{SOME} {line}   # of the mailing")
    yield {
        "reader_tokens_file": readers,
        "admin_tokens_file": write_tokens(folder / "admins", ADMIN),
    }


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedRelay]:
    """A relay with a row of each table and a statement on each; the orders are secret."""
    folder = tmp_path_factory.mktemp("limited")
    with tokens(folder) as files:
        served = ServedRelay(folder, http={"port": 0, **files})
    statements = [
        TableDefined((table.source,), "shop", f"ALTER TABLE {table.source} COMMENT '{text}'")
        for table, text in ((PERSON, "open"), (ORDERS, "s3cr3t"))
    ]
    both = TableDefined((PERSON.source, ORDERS.source), "shop", "RENAME s3cr3t")
    rows = insert(1, "Ann"), insert(2, "s3cr3t", ORDERS)
    served.put(transaction(5, *rows), transaction(7, *statements, both, insert(3, "Bob")))
    served.server.start_threads()
    yield served
    served.close()


def events(answer: Answer) -> list[Event]:
    assert answer.status == 200, answer.body
    return list(walk(answer.body))


@pytest.mark.parametrize("asked", [{}, {"wait": 50, "follow": "true"}, {"output": "json"}])
def test_it_reads_its_own_sources_and_statements_on_them_alone(
    relay: ServedRelay, asked: dict[str, Any]
) -> None:
    found = relay.get(
        "/stream",
        bearer(SOME),
        **{"sources": "1", "size": 1 << 20, "ddl": "true", "checkPoint": FIRST, **asked},
    )
    assert found.status == 200
    assert SECRET not in found.body
    if "output" not in asked:
        told = [statement_of(one) for one in walk(found.body) if one.is_statement]
        assert [one.sources for one in told] == [(PERSON.source,)]
        assert [one.src_id for one in walk(found.body) if one.src_id > 0] == [1, 1]


@pytest.mark.parametrize("sources", ["2", "shop.orders", "1,2", "shop.person,shop.orders"])
@pytest.mark.parametrize("path", ["/stream", "/register", "/measure", "/segments"])
def test_what_it_may_not_read_is_refused_by_name(
    relay: ServedRelay, path: str, sources: str
) -> None:
    asked = {"sources": sources, "size": 1 << 20, "checkPoint": FIRST, "rows": 5}
    answer = relay.get(path, bearer(SOME), **asked)
    assert said(answer) == (403, "ForbiddenException")
    text = "the token may not read shop.orders: it is for shop.* !*.orders"
    assert json.loads(answer.body)["message"] == text
    assert relay.get(path, bearer(ALL), **asked).status == 200


def test_subscriptions_are_limited_too(relay: ServedRelay) -> None:
    subs = json.dumps([{"physicalSource": {"name": "shop"}, "logicalPartition": {"source": {
        "id": 2, "name": "shop.orders"}, "id": -1}}])  # fmt: skip
    asked = {"subs": subs, "size": 1 << 20, "checkPoint": FIRST}
    assert relay.get("/stream", bearer(ALL), **asked).status == 200
    assert relay.get("/stream", bearer(SOME), **asked).status == 403


def test_lists_have_its_own_sources_alone(relay: ServedRelay) -> None:
    def names(path: str) -> list[str]:
        return re.findall(r"shop\.\w+", relay.get(path, bearer(SOME)).body.decode())

    for path in ("/sources", "/physicalSources", "/api/v1/tables"):
        assert set(names(path)) == {"shop.person"}
    assert {one["id"] for one in json.loads(relay.get("/register", bearer(SOME)).body)} == {1}
    unknown = relay.get("/register", bearer(SOME), sources="shop.none")
    assert (unknown.status, b"orders" in unknown.body) == (404, False)


def test_no_answer_has_anything_of_what_it_may_not_read(relay: ServedRelay) -> None:
    document = json.loads(relay.get(DOCUMENT_PATH).body)
    paths = [re.sub(r"\{\w+\}", "shop.orders", path) for path in document["paths"]]
    paths += [path.replace("shop.orders", "shop") for path in paths]
    paths += [re.sub(r"\(.*", "", path) for path, _ in COMMANDS]
    paths += ["/metrics", "/health", "/ready", "/containerStats/inbound", "/controlSources/status"]
    paths += ["/bufferInfo/inbound/shop/0", "/relayCommand/getPrevScn"]
    asked = {"source": "shop.orders", "sources": "shop.orders", "at": "earliest", "size": 1 << 20}
    shown = {}
    for path in paths:
        for parameters in ({}, asked):
            answer = relay.get(path, bearer(SOME), **parameters)
            # A refusal may repeat what was asked for.
            names = rb"s3cr3t" if answer.status >= 400 else rb"s3cr3t|shop\.orders"
            if re.search(names, answer.body):
                shown[path] = answer.body
    assert shown == {}
    for path in ("/metrics", "/api/v1/relay", "/api/v1/schemas", "/containerStats"):
        refused = relay.get(path, bearer(SOME))
        assert said(refused) == (403, "ForbiddenException")
        assert "is about all sources" in json.loads(refused.body)["message"]


def test_rows_columns_and_places_of_a_source_are_those_of_who_may_read_it(
    relay: ServedRelay,
) -> None:
    for path in (
        "/api/v1/physicalSources/shop/rows?source={}",
        "/api/v1/sources/{}/columns",
        "/api/v1/sources/{}/position?at=earliest",
    ):
        assert relay.get(path.format("shop.person"), bearer(SOME)).status == 200
        refused = relay.get(path.format("shop.orders"), bearer(SOME))
        assert (refused.status, "may not read shop.orders" in refused.body.decode()) == (403, True)
    both = "/api/v1/sources/shop.person/position?at=earliest&others=shop.orders"
    assert relay.get(both, bearer(SOME)).status == 403


def test_a_client_follows_its_own_sources(relay: ServedRelay, tmp_path: Path) -> None:
    write_tokens(tmp_path / "token", SOME)
    access = {"token_file": tmp_path / "token"}
    with DatabusClient([relay.url], access=access, start="earliest", wait_ms=100) as client:
        window = next(iter(client.windows("shop.person")))
        assert [event.row["name"] for event in window.events] == ["Ann"]


def test_a_report_shows_no_positions_of_a_client_that_reads_more(relay: ServedRelay) -> None:
    relay.get(
        "/stream",
        {**bearer(ALL), Header.CLIENT_ID: "warehouse"},
        sources="1,2", size=1 << 20, checkPoint=FIRST,
    )  # fmt: skip
    known = {"id": "warehouse", "name": "warehouse", "state": "running", "version": "1"}
    body = json.dumps({**known, "startedAt": 1.0, "registrations": []})
    answers = []
    for token in (SOME, ALL):
        connection = http.client.HTTPConnection(urlsplit(relay.url).netloc, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            connection.request("POST", "/api/v1/clients/warehouse", body, bearer(token))
            with connection.getresponse() as answer:
                answers.append((answer.status, b"shop.orders" in answer.read()))
    assert answers == [(403, True), (200, True)]  # the first one as what may not be read


def test_a_relay_of_relays_needs_a_token_for_everything(relay: ServedRelay, tmp_path: Path) -> None:
    write_tokens(tmp_path / "token", SOME)
    settings = PhysicalSourceSettings(
        name="shop",
        uri=f"databus+{relay.url}",
        sources=("shop.person",),
        upstream_token_file=tmp_path / "token",
    )
    from databus.relay.sources.kind import open_source

    source = open_source(settings)
    try:
        with pytest.raises(Exception, match="about all sources, and the token is for shop"):
            source.open(None)
    finally:
        source.close()


def test_a_bootstrap_server_limits_it_too(tmp_path: Path) -> None:
    with tokens(tmp_path) as files:
        store = ServedStore(tmp_path, http=files)
    try:
        listed = json.loads(store.get("/sources", bearer(SOME)).body)
        assert [one["name"] for one in listed] == ["shop.person"]
        assert {one["id"] for one in json.loads(store.get("/register", bearer(SOME)).body)} == {1}
        begin = Checkpoint(ConsumptionMode.SNAPSHOT).to_json()
        page = snapshot_at(ORDERS.source, 5).to_json()
        asked: dict[str, Any] = {"batchSize": 1 << 20, "rows": 9}
        places = {"/startSCN": begin, "/bootstrap": page, "/measure": page, "/register": ""}
        for path, place in places.items():
            for sources in ("shop.orders", "2", "1,2"):
                refused = store.get(path, bearer(SOME), **asked, sources=sources, checkPoint=place)
                assert said(refused) == (403, "ForbiddenException"), (path, refused.body)
                assert "may not read shop.orders" in refused.body.decode()
        assert said(store.get("/targetSCN", bearer(SOME), source="2"))[0] == 403
        assert store.get("/startSCN", bearer(SOME), sources="1", checkPoint=begin).status == 200
        for path in ("/bootstrapStatus", "/metrics", "/api/v1/bootstrap", "/api/v1/sessions"):
            assert said(store.get(path, bearer(SOME)))[0] == 403
            assert store.get(path, bearer(ALL)).status == 200
    finally:
        store.close()


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ([f"{SOME} shop.*", f"{SOME} crm.*"], "a token is in it twice"),
        ([f"{SOME} !shop.orders"], "leaves out of what no pattern takes in: write \\* before it"),
    ],
)
def test_lines_that_cannot_be_meant_are_refused(
    tmp_path: Path, lines: list[str], text: str
) -> None:
    file = write_tokens(tmp_path / "readers", *lines)
    with pytest.raises(SettingsError, match=text) as refused:
        make_access(build_settings({"reader_tokens_file": file}, HttpSettings))
    assert SOME not in str(refused.value)


def test_a_client_takes_the_first_token_of_a_file_that_is_for_everything(tmp_path: Path) -> None:
    file = write_tokens(tmp_path / "readers", f"{SOME} shop.*", ALL)
    settings = ServerAccessSettings(token_file=file)
    assert (read_token(settings), has_whole_reader(file)) == (ALL, True)
    write_tokens(file, f"{SOME} shop.*")
    assert (read_token(settings), has_whole_reader(file)) == (SOME, False)


def test_an_admin_is_not_limited_by_being_a_reader_too(tmp_path: Path) -> None:
    with tokens(tmp_path, "shop.person") as files:
        write_tokens(files["admin_tokens_file"], ADMIN, SOME)
        access = make_access(build_settings(dict(files), HttpSettings))
    assert access.limit_of(f"Bearer {SOME}") is None
    assert access.role_of(f"Bearer {SOME}") is Role.ADMIN
