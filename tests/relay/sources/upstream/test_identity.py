"""When another relay is one of the same source, and what is taken over from it."""

from __future__ import annotations

from databus.relay.sources.epochs import Epoch
from databus.relay.sources.source import SourceSchema
from databus.relay.sources.upstream.identity import (
    epochs_problem,
    merged_epochs,
    schemas_problem,
    sources_problem,
    versions_to_add,
)


def epoch(number: int, server: str, first_scn: int = 0) -> Epoch:
    return Epoch(number, server, "mysql://a", first_scn, -1, "bin.000001", 4, None, 0)


def schema(text: str, start_scn: int, source: str = "shop.orders") -> SourceSchema:
    return SourceSchema(source, text, start_scn, text.encode())


A, B, C = schema("a", 0), schema("b", 100), schema("c", 200)


def test_sources_must_have_the_same_names_and_ids() -> None:
    own = {"shop.orders": 1, "shop.people": 2}
    assert sources_problem(own, dict(reversed(own.items()))) == ""
    assert "it has no source shop.people" in sources_problem(own, {"shop.orders": 1})
    assert "it also has shop.items" in sources_problem(own, own | {"shop.items": 3})
    assert "has id 7 there and 2 here" in sources_problem(own, own | {"shop.people": 7})


def test_an_epoch_has_one_server() -> None:
    own = [epoch(0, "s"), epoch(1, "t")]
    assert epochs_problem(own, [epoch(1, "t"), epoch(2, "u")]) == ""
    assert epochs_problem([], own) == ""
    assert "epoch 1 is server x, and here it is t" in epochs_problem(own, [epoch(1, "x")])


def test_epochs_are_added_once_their_windows_come() -> None:
    own, theirs = [epoch(0, "s", 5)], [epoch(0, "s", 9), epoch(1, "t"), epoch(2, "u")]
    assert merged_epochs(own, theirs, 0) == own
    assert merged_epochs(own, theirs, 1) == [*own, theirs[1]]
    assert merged_epochs([], theirs, 2) == theirs
    # A relay that was set up later has not seen the first ones.
    assert merged_epochs([*own, theirs[1]], theirs[1:], 2) == [*own, *theirs[1:]]


def test_schemas_that_follow_are_added_in_order() -> None:
    assert versions_to_add({"shop.orders": []}, [A, B]) == [A, B]
    assert versions_to_add({"shop.orders": [A]}, [A, B, C]) == [B, C]
    assert versions_to_add({"shop.orders": [A, B, C]}, [A, B]) == []
    # Altered back and forth, and twice at one place.
    again = schema("a", 300)
    assert versions_to_add({"shop.orders": [A, B]}, [A, B, again]) == [again]
    twice = schema("d", 100)
    assert versions_to_add({"shop.orders": [A, B]}, [A, B, twice]) == [twice]
    assert versions_to_add({"shop.orders": []}, [schema("x", 0, "other")]) == []


def test_the_schema_at_the_newest_window_must_be_known() -> None:
    own = {"shop.orders": [A, B]}
    assert schemas_problem(own, [A, B, C], 150) == ""
    assert schemas_problem(own, [B._replace(start_scn=0), C], 150) == ""
    assert "another schema of shop.orders" in schemas_problem(own, [A, C], 250)
    assert schemas_problem({"shop.orders": []}, [A], 5) == ""
