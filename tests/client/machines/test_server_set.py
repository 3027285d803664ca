"""Sets of servers that are found: which have the sources, and which are better."""

from __future__ import annotations

from databus.client.machines.server_set import (
    AddRelay,
    RemoveRelay,
    ReplaceServers,
    Servers,
    ServerSetMachine,
    changes,
    found_servers,
)
from databus.servers.entry import HeldSource, Kind, ServerEntry

ORDERS = ("shop.orders",)


def entry(
    name: str,
    *,
    kind: Kind = "relay",
    room: str = "",
    connections: int = 0,
    sources: tuple[str, ...] = ORDERS,
    oldest_scn: int = -1,
) -> ServerEntry:
    held = {"shop": HeldSource(sources, oldest_scn, 99)}
    return ServerEntry(name, kind, f"http://{name}", room, connections, held)


def best(*entries: ServerEntry, scn: int = -1, room: str = "cellar") -> list[str]:
    ranks = found_servers(entries, "memory:", room, ()).ranks(ORDERS, scn)
    return sorted(ranks, key=ranks.__getitem__)


def test_relays_and_bootstrap_servers_are_told_apart_and_named_ones_are_kept() -> None:
    found = found_servers(
        [entry("a"), entry("b", kind="bootstrap")], "memory:", "", ("http://n", "http://b")
    )
    assert found.relays == ("http://a",)
    assert found.bootstraps == ("http://n", "http://b")


def test_only_servers_with_all_sources_are_used_and_those_that_say_nothing() -> None:
    found = found_servers(
        [entry("a"), entry("b", sources=("crm.people",)), entry("c", kind="bootstrap", sources=())],
        "memory:",
        "",
        ("http://n",),
    )
    of_orders = found.of_sources(ORDERS)
    assert (of_orders.relays, of_orders.bootstraps) == (("http://a",), ("http://n",))


def test_first_what_holds_the_place_then_the_same_room_then_fewer_connections() -> None:
    far, near = entry("far"), entry("near", room="cellar", connections=900)
    late = entry("late", room="cellar", oldest_scn=50)
    busy, idle = entry("busy", connections=100), entry("idle", connections=3)
    assert best(far, near) == ["http://near", "http://far"]
    assert best(late, far, scn=10) == ["http://far", "http://late"]
    assert best(far, late, scn=50) == ["http://late", "http://far"]
    assert best(busy, idle) == ["http://idle", "http://busy"]
    # Without a place, every relay will do.
    assert best(far, late) == ["http://late", "http://far"]


def test_a_few_connections_more_make_no_difference() -> None:
    ranks = found_servers(
        [entry("a", connections=70), entry("b", connections=100)], "", "", ()
    ).ranks()
    assert ranks["http://a"] == ranks["http://b"]


def test_the_messages_between_two_sets_make_the_machine_have_the_second() -> None:
    before = found_servers([entry("a"), entry("b")], "memory:", "", ())
    after = found_servers(
        [entry("b", connections=5), entry("c"), entry("d", kind="bootstrap")], "memory:", "", ()
    )
    messages = changes(before, after)
    assert messages == [
        AddRelay("http://c", after.entries["http://c"]),
        RemoveRelay("http://a"),
        ReplaceServers(after),
    ]
    machine = ServerSetMachine(before)
    for message in messages:
        machine.handle(message)
    assert machine.servers == after


def test_a_relay_that_is_added_by_hand_is_one_of_which_nothing_is_known() -> None:
    machine = ServerSetMachine(Servers(()))
    machine.handle(AddRelay("http://a"))
    assert machine.servers.of_sources(ORDERS).relays == ("http://a",)
