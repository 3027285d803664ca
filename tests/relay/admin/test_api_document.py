"""The relay's OpenAPI document against its handlers: the same paths, and only answers it names.

The sources are a generator, which never rests, and an SQLite file.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, given, settings, strategies as st

from databus.client.membership.membership import Membership
from databus.conf.loading import build_settings
from databus.conf.settings import RelaySettings
from databus.daemon.http.openapi import EndpointHandler
from databus.groups.group_record import GroupFacts, Process
from databus.leases.places import open_records
from databus.leases.store import LeaseStore
from databus.relay.relay import Relay
from databus.relay.service import make_service, routes
from databus.relay.serving.databus.handlers import COMMANDS
from tests.api_fuzz import check_answer, fuzz, operations_of
from tests.promises.running import Shop
from tests.relay.admin.test_api import ROOT, post, report
from tests.relay.fakes import ServiceThread, get, wait_until

MADE = {
    "name": "made",
    "uri": "generator:?rate=200",
    "sources": ["made.a", "made.b"],
    "ring_bytes": 1 << 20,
}
STREAM_PARAMETERS = (
    *("sources", "subs", "size", "checkPoint", "checkPointMult", "output", "maxev", "filters"),
    *(
        "streamFromLatestScn",
        "untilScn",
        "wait",
        "follow",
        "ddl",
        "truncate",
        "rows",
        "bytes",
        "since",
        "source",
        "v",
    ),
    "protocolVersion",
)
VALUES = st.one_of(
    st.text(max_size=20),
    st.integers().map(str),
    st.sampled_from(
        (
            *("1", "1,2", "made.a", "0", "-1", "1000000", "true", "json", "json_plain_value"),
            '{"consumption_mode":"ONLINE_CONSUMPTION","windowScn":5,"windowOffset":-1}',
            '{"consumption_mode":"ONLINE_CONSUMPTION","windowScn":-5,"windowOffset":7}',
            '{"1":{"partitionType":"MOD","filters":[{"numBuckets":0}]}}',
            '{"1":{"partitionType":"RANGE","filters":[{"keyRange":{"start":1,"end":2}}]}}',
            '[{"logicalPartition":{"source":{"id":1}}}]',
            '{"made":"{}"}',
            "[" * 2000,
            "{}",
        )
    ),
)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    shop = Shop(tmp_path / "shop.db")
    raw = {
        "data_dir": tmp_path / "data",
        "coordinator": coordinator(tmp_path),
        "http": {"port": 0, "max_wait_ms": 5},
        "physical_sources": [MADE, shop.settings()],
    }
    with contextlib.closing(shop):
        service = ServiceThread(make_service(Relay(build_settings(raw, RelaySettings))))
        try:
            here = SimpleNamespace(url=service.url)
            wait_until(lambda: ask(here, "/relay")["isReady"])
            shop.insert(1, 2, 3)
            wait_until(lambda: ask(here, "/physicalSources/shop")["events"] == 3)
            wait_until(lambda: ask(here, "/servers")["servers"] != [])
            yield service.url
        finally:
            service.close()


def coordinator(folder: Path) -> str:
    """Return the URL of a store where group `made` meets, with one process."""
    url = f"file:{folder / 'coordinator'}"
    with contextlib.closing(open_records(url)) as records:
        facts = GroupFacts("made", 4, ("made.a",))
        member = Membership(records, LeaseStore(records), facts, Process("host:1"))
        member.join(600.0)
        member.look()
        member.acquire(0)
        member.note_taken([0])
    return url


def ask(here: Any, path: str) -> Any:
    return json.loads(get(here.url, ROOT + path).body)


def document_of(url: str) -> dict[str, Any]:
    return dict(json.loads(get(url, f"{ROOT}/openapi.json").body))


def test_the_document_has_every_route_and_no_other(tmp_path: Path) -> None:
    raw = {"data_dir": tmp_path / "data", "physical_sources": [MADE]}
    relay = Relay(build_settings(raw, RelaySettings))
    try:
        served = {
            (endpoint.method, endpoint.path)
            for _, handler, arguments in routes(relay)
            if issubclass(handler, EndpointHandler)
            for endpoint in arguments["endpoints"].values()
        }
    finally:
        relay.stop()
    service = ServiceThread(make_service(Relay(build_settings(raw | HTTP, RelaySettings))))
    try:
        assert operations_of(document_of(service.url)) == served
    finally:
        service.close()


HTTP = {"http": {"port": 0}}


# By the path's end.
QUERIES = {
    "rows": "?source=made.a&limit=200",
    "position": "?at=latest",
    "leases": "?dependent=true",
}
BODIES = {
    "physicalSources": {"settings": {"name": "more"}},
    "repair": {"source": "made.a"},
    "restart": {"scn": "3"},
    "switch": {"uri": MADE["uri"]},
}


def test_each_answer_is_of_the_model_that_the_document_names(url: str) -> None:
    document = document_of(url)
    here: Any = SimpleNamespace(url=url)
    get(url, "/stream?sources=made.a&size=1000000")
    asked = 0
    for method, path in sorted(operations_of(document)):
        name = "made.a" if "/sources/" in path else "made"
        real = path.replace("{name}", name).replace("{id}", "ann-1")
        if method == "GET":
            query = QUERIES.get(path.rpartition("/")[2], "")
            answer = get(url, real + query)
        else:
            body = report() if "clients" in path else BODIES.get(path.rpartition("/")[2], {})
            answer = post(here, real.removeprefix(ROOT), body)
        # None of its tables is stopped, and it has no settings file to be changed.
        ends = ("/repair", "/physicalSources", "/sources", "/remove")
        wanted = 409 if method == "POST" and path.endswith(ends) else 200
        assert answer.status == wanted, (path, answer.body)
        check_answer(document, method, path, answer.status, answer.body)
        asked += 1
    assert asked == len(operations_of(document)) >= 14


def test_refusals_are_in_the_document_too(url: str) -> None:
    document = document_of(url)
    here: Any = SimpleNamespace(url=url)
    one = f"{ROOT}/physicalSources/{{name}}"
    for method, path, real, body in (
        ("GET", one, f"{ROOT}/physicalSources/nobody", None),
        ("GET", f"{one}/rows", f"{ROOT}/physicalSources/made/rows?source=no", None),
        ("GET", f"{one}/rows", f"{ROOT}/physicalSources/made/rows?source=made.a&limit=0", None),
        ("GET", f"{one}/history", f"{ROOT}/physicalSources/made/history?seconds=x", None),
        ("GET", f"{ROOT}/relay", f"{ROOT}/relay?more=1", None),
        ("GET", f"{ROOT}/groups/{{name}}", f"{ROOT}/groups/nobody", None),
        ("GET", f"{ROOT}/leases", f"{ROOT}/leases?dependent=x", None),
        ("POST", f"{one}/restart", "/physicalSources/shop/restart", {"scn": "99999"}),
        ("POST", f"{one}/restart", "/physicalSources/shop/restart", {"scn": "x"}),
        ("POST", f"{one}/repair", "/physicalSources/shop/repair", {"source": "shop.person"}),
        ("POST", f"{one}/switch", "/physicalSources/shop/switch", {"uri": "mysql://a@b:1"}),
        ("POST", f"{one}/pause", "/physicalSources/nobody/pause", {}),
        ("POST", f"{ROOT}/clients/{{id}}", "/clients/a", report()),
    ):
        answer = get(url, real) if method == "GET" else post(here, real, body)
        assert answer.status in (400, 404, 409), (real, answer.body)
        check_answer(document, method, path, answer.status, answer.body)


def test_whatever_is_sent_is_answered_as_the_document_says(url: str) -> None:
    assert fuzz(url, document_of(url), examples=15) > 300


def test_so_is_whatever_is_sent_to_sources_that_there_are(url: str) -> None:
    document = document_of(url)
    for path, operations in document["paths"].items():
        for parameter in (p for of in operations.values() for p in of["parameters"]):
            if parameter["name"] == "name" and "{name}" in path:
                parameter["schema"] = {"enum": ["made", "shop"]}
            if parameter["name"] == "source":
                parameter["schema"] = {"enum": ["made.a", "made.b", "shop.orders"]}
    named = {path: of for path, of in document["paths"].items() if "{name}" in path}
    assert fuzz(url, document | {"paths": named}, examples=10) > 100


def test_random_parameters_of_the_commands_give_no_internal_error(url: str) -> None:
    paths = [path.replace("([^/]+)", "made").split("(")[0] for path, _ in COMMANDS]
    verbs = ["status", "getPrevScn", "inbound", "events", "a/b", "%ff", "..", ""]

    @settings(
        max_examples=400, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(
        path=st.sampled_from(paths),
        verb=st.sampled_from(verbs),
        parameters=st.dictionaries(st.sampled_from(STREAM_PARAMETERS), VALUES, max_size=5),
    )
    def send(path: str, verb: str, parameters: dict[str, str]) -> None:
        asked = {**parameters}
        answer = session.get(url + path + (verb if path.endswith("/") else ""), params=asked)
        assert answer.status_code < 500, answer.text

    with requests.Session() as session:
        send()
