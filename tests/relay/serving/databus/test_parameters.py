from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from databus.conf.settings import HttpSettings, PhysicalSourceSettings
from databus.relay.catalog import make_catalog
from databus.relay.serving.databus.parameters import (
    StreamRequest,
    StreamRequests,
    parse_source_list,
    parse_stream_request,
)
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import DatabusError, InvalidParameterError, UnknownSourceError
from databus.schemas.rendering import Output

CATALOG = make_catalog(
    [
        PhysicalSourceSettings.model_validate(
            {"name": "shop", "uri": "fake:", "sources": ["shop.person", "shop.orders"]}
        ),
        PhysicalSourceSettings.model_validate(
            {"name": "crm", "uri": "fake:", "sources": ["crm.contact"]}
        ),
    ],
    {},
)
LIMITS = HttpSettings(max_response_bytes=1 << 20, max_wait_ms=5000)
MOD = '{"1":{"partitionType":"MOD","filters":[{"numBuckets":2,"bktRange":{"start":0,"end":1}}]}}'


def parse(**parameters: str) -> StreamRequest:
    return parse_stream_request({"size": "1000"} | parameters, CATALOG, LIMITS)


def test_the_least_that_can_be_asked() -> None:
    request = parse(sources="1")
    (selection,) = request.selections
    assert selection.physical_source == "shop"
    assert selection.checkpoint.is_flexible
    assert selection.src_ids == frozenset({1})
    assert (request.form.output, request.form.event_version) == (Output.BINARY, 0)
    assert (request.form.size_bytes, request.wait_ms, request.is_together) == (1000, 0, False)


def test_every_source_of_a_physical_source_is_no_choice_at_all() -> None:
    (selection,) = parse(sources="2,shop.person").selections
    assert selection.src_ids is None
    assert not selection.filters


@pytest.mark.parametrize(("text", "is_wanted"), [({}, False), ({"ddl": "true"}, True)])
def test_ddl_events_must_be_asked_for(text: dict[str, str], is_wanted: bool) -> None:
    (selection,) = parse(sources="1", **text).selections
    assert selection.wants_ddl is is_wanted


def test_a_filter_is_a_choice() -> None:
    (selection,) = parse(sources="1,2", filters=MOD).selections
    assert set(selection.filters) == {1}
    assert selection.filters[1].matches(4)
    assert not selection.filters[1].matches(5)


def test_a_filter_of_a_source_that_is_not_asked_for_does_not_matter() -> None:
    (selection,) = parse(sources="2", filters=MOD).selections
    assert selection.filters == {}


def test_size_and_wait_are_cut_to_the_limits() -> None:
    request = parse(sources="1", size="99999999", wait="99999")
    assert (request.form.size_bytes, request.wait_ms) == (1 << 20, 5000)


@pytest.mark.parametrize(("maxev", "version"), [("0", 0), ("1", 0), ("2", 2), ("7", 2)])
def test_the_event_version_is_one_the_client_can_read(maxev: str, version: int) -> None:
    assert parse(sources="1", maxev=maxev).form.event_version == version


def test_a_checkpoint_is_read() -> None:
    text = '{"consumption_mode":"ONLINE_CONSUMPTION","windowScn":7,"windowOffset":3}'
    (selection,) = parse(sources="1", checkPoint=text).selections
    assert (selection.checkpoint.window_scn, selection.checkpoint.window_offset) == (7, 3)


def subscription(source: Any, partition: Any = None) -> dict[str, Any]:
    return {
        "physicalSource": {"uri": "x"},
        "physicalPartition": partition,
        "logicalPartition": {"source": source, "id": 0},
    }


@pytest.mark.parametrize(
    ("subs", "src_ids"),
    [
        ([subscription({"id": 1, "name": "shop.person"})], {"shop": {1}}),
        ([subscription({"name": "crm.contact"})], {"crm": None}),
        (subscription({"id": 1}), {"shop": {1}}),
        ([subscription({"id": -1, "name": "*"}, {"id": 0, "name": "shop"})], {"shop": None}),
        ([subscription({"id": -1, "name": "*"})], {"shop": None, "crm": None}),
    ],
)
def test_subscriptions_name_sources(subs: Any, src_ids: dict[str, Any]) -> None:
    flexible = Checkpoint.flexible().to_json()
    mult = json.dumps({json.dumps({"id": 0, "name": name}): flexible for name in ("shop", "crm")})
    request = parse(subs=json.dumps(subs), checkPointMult=mult)
    assert {s.physical_source: s.src_ids for s in request.selections} == src_ids
    assert request.is_together


def test_each_physical_source_has_its_own_checkpoint() -> None:
    mult = json.dumps({"shop": Checkpoint.at(5).to_json(), "crm": Checkpoint.at(9).to_json()})
    request = parse(sources="1,3", checkPointMult=mult)
    assert {s.physical_source: s.checkpoint.window_scn for s in request.selections} == {
        "shop": 5,
        "crm": 9,
    }


ANY = '{"id":-1,"name":"*"}'


def test_the_checkpoint_of_any_partition_is_that_of_the_only_physical_source() -> None:
    mult = json.dumps({ANY: Checkpoint.at(5).to_json()})
    subs = json.dumps([subscription({"id": 3, "name": "crm.contact"}, json.loads(ANY))])
    request = parse(subs=subs, checkPointMult=mult)
    assert [(s.physical_source, s.checkpoint.window_scn) for s in request.selections] == [
        ("crm", 5)
    ]
    named = json.dumps({ANY: Checkpoint.at(5).to_json(), "crm": Checkpoint.at(9).to_json()})
    assert parse(subs=subs, checkPointMult=named).selections[0].checkpoint.window_scn == 9


def test_the_checkpoint_of_any_partition_is_not_that_of_several_physical_sources() -> None:
    mult = json.dumps({ANY: Checkpoint.at(5).to_json()})
    with pytest.raises(InvalidParameterError, match="no checkpoint for physical source shop, crm"):
        parse(sources="1,3", checkPointMult=mult)


def test_a_source_list_may_be_left_out_and_doubles_do_not_matter() -> None:
    assert parse_source_list({}, CATALOG) == [1, 2, 3]
    assert parse_source_list({"sources": "2,2,shop.orders"}, CATALOG) == [2]


@pytest.mark.parametrize("text", ["--1", "-", "-1", "\u0663", "1_0", "+1", "9" * 11])
def test_what_is_neither_a_name_nor_an_id_is_an_unknown_source(text: str) -> None:
    with pytest.raises(UnknownSourceError):
        parse_source_list({"sources": text}, CATALOG)


@pytest.mark.parametrize("name", [[], {}, 7, True])
def test_a_physical_source_that_is_no_text_is_refused(name: Any) -> None:
    with pytest.raises(InvalidParameterError, match="no physical source"):
        parse(subs=json.dumps([subscription({"name": "*"}, {"name": name})]))


@pytest.mark.parametrize("size", ["", " ", "x", "-1", "1.5", "0", "\uff11\uff12", "1" * 20])
def test_a_size_that_is_no_size_is_refused(size: str) -> None:
    with pytest.raises(InvalidParameterError, match="size"):
        parse(sources="1", size=size)


NAMES = st.sampled_from(
    [
        "sources",
        "subs",
        "size",
        "checkPoint",
        "checkPointMult",
        "filters",
        "wait",
        "follow",
        "maxev",
        "output",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
).map(json.dumps)


@given(st.dictionaries(NAMES, st.text(max_size=30) | JSON | st.sampled_from(["1", "1,3", MOD])))
def test_whatever_is_asked_is_answered_or_refused_with_an_error_of_ours(
    parameters: dict[str, str],
) -> None:
    refused = None
    try:
        request = parse_stream_request(parameters, CATALOG, LIMITS)
    except DatabusError as error:
        refused = str(error)
    assert refused is None or refused
    assert refused or request.selections


def test_equal_requests_are_parsed_once_and_others_are_not_mixed_up() -> None:
    requests = StreamRequests(CATALOG, LIMITS)
    found = [
        requests.parse({"sources": "1", "size": size, "checkPoint": Checkpoint.at(scn).to_json()})
        for scn in range(1, 100)
        for size in ("1000", "1000", "2000")
    ]
    for first, second, third in zip(found[::3], found[1::3], found[2::3], strict=True):
        assert first is second
        assert (first.form.size_bytes, third.form.size_bytes) == (1000, 2000)
    assert [r.selections[0].checkpoint.window_scn for r in found[::3]] == list(range(1, 100))
    for _ in range(2):
        with pytest.raises(InvalidParameterError):
            requests.parse({"sources": "1", "size": "oops"})
