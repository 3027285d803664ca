"""Who reads from whom: depths, parents, loops, and chains that are cut where they close."""

from __future__ import annotations

from typing import Any

import pytest

from databus.relay.cluster.chain import MOST_LINKS, Above, chain_of, depth_of, read_above
from databus.relay.cluster.coordinator import SeenServer
from databus.relay.cluster.models import ChainLink, Chains, ChainView
from databus.relay.cluster.tree import Place, places, url_key
from databus.servers.entry import HeldSource, Kind, ServerEntry


def server(
    name: str, reads: str = "", *, kind: Kind = "relay", is_gone: bool = False
) -> SeenServer:
    held = {"shop": HeldSource(("shop.orders",), 1, 9, reads)}
    entry = ServerEntry(name, kind, f"http://{name}:11115", "", 0, held)
    return SeenServer(entry, True, is_gone, 1.0)


def test_depths_are_counted_from_the_database() -> None:
    found = places(
        [
            server("a"),
            server("b", "http://a:11115"),
            server("c", "http://B:11115/"),
            server("d", "http://b:11115", kind="bootstrap"),
            server("e", "http://elsewhere:11115"),
        ],
        "shop",
    )
    assert found == {
        "a": Place(None, 0, False),
        "b": Place("a", 1, False),
        "c": Place("b", 2, False),
        "d": Place("b", 2, False),
        "e": Place(None, None, False),
    }


def test_a_loop_has_no_depth_nor_has_what_hangs_on_it() -> None:
    found = places(
        [
            server("a", "http://b:11115"),
            server("b", "http://a:11115"),
            server("c", "http://a:11115"),
        ],
        "shop",
    )
    assert found == {
        "a": Place("b", None, True),
        "b": Place("a", None, True),
        "c": Place("a", None, True),
    }


def test_a_parent_that_has_gone_is_one_until_another_has_its_url() -> None:
    gone = server("a", is_gone=True)
    assert places([gone, server("b", "http://a:11115")], "shop")["b"] == Place("a", 1, False)
    again = SeenServer(
        ServerEntry("a2", "relay", "http://a:11115", "", 0, gone.entry.physical_sources),
        True,
        False,
        2.0,
    )
    assert places([again, gone, server("b", "http://a:11115")], "shop")["b"].parent == "a2"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://Relay-A", "http://relay-a:80/"),
        ("https://relay-a", "https://relay-a:443"),
        ("http://localhost:1", "http://127.0.0.1:1"),
        ("http://[::1]:1", "http://localhost:1"),
    ],
)
def test_two_spellings_of_a_url_are_one(one: str, other: str) -> None:
    assert url_key(one) == url_key(other)


def test_a_url_with_a_wrong_port_is_like_no_other() -> None:
    assert url_key("http://a:port") != url_key("http://a")


def link(name: str, reads: str = "", problem: str = "") -> ChainLink:
    found = ChainLink.silent(f"http://{name}", problem)
    return found.model_copy(update={"instance": name, "reads": reads})


def test_a_chain_ends_at_who_reads_the_database() -> None:
    own, above = link("c", "http://b"), Above((link("b", "http://a"), link("a")), "http://b")
    links, loop = chain_of(own, above)
    assert ([one.instance for one in links], loop) == (["c", "b", "a"], "")
    assert depth_of(links, loop) == 2
    assert depth_of(links[:2], "") is None  # more is not known yet
    assert depth_of([link("a")], "") == 0


def test_a_loop_is_named_and_its_links_are_there_once() -> None:
    own = link("a", "http://b")
    above = Above((link("b", "http://c"), link("c", "http://b"), link("b", "http://c")), "http://b")
    links, loop = chain_of(own, above)
    assert [one.instance for one in links] == ["a", "b", "c"]
    assert "http://b reads http://c, which reads http://b" in loop
    assert depth_of(links, loop) is None
    _, of_two = chain_of(own, Above((link("b", "http://a"), link("a", "http://b")), "http://b"))
    assert "http://a reads http://b, which reads http://a" in of_two
    _, of_one = chain_of(own, Above((link("a", "http://a"),), "http://a"))
    assert "http://a reads http://a" in of_one


def test_a_chain_has_so_many_links_at_most() -> None:
    many = tuple(link(str(number), "http://x") for number in range(100))
    links, loop = chain_of(link("own", "http://0"), Above(many, "http://0"))
    assert (len(links), loop, depth_of(links, loop)) == (MOST_LINKS, "", None)


def test_a_relay_that_is_silent_is_the_last_link_with_the_reason() -> None:
    links, loop = chain_of(link("b", "http://a"), Above((), "http://a", "does not answer"))
    assert [one.problem for one in links] == ["", "does not answer"]
    assert depth_of(links, loop) is None


def test_what_an_upstream_says_is_read_or_refused() -> None:
    chain = ChainView(physical_source="shop", depth=0, links=[link("a")], loop="")
    said = Chains(chains=[chain]).model_dump(mode="json", by_alias=True)
    (found,) = read_above(said, "shop", "http://relay-a").links
    assert (found.instance, found.url) == ("a", "http://relay-a")
    answers: tuple[Any, ...] = ({}, {"chains": []}, {"chains": [{}]}, [], None)
    for wrong in answers:
        with pytest.raises(ValueError):  # noqa: PT011
            read_above(wrong, "shop", "http://relay-a")
