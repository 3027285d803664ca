"""Entries of servers: what is written is read, and nothing else is."""

from __future__ import annotations

import json

import pytest

from databus.servers.entry import HeldSource, ServerEntry, decode_entry

SHOP = HeldSource(("shop.orders", "shop.customers"), 10, 40)
ENTRY = ServerEntry(
    "1f",
    "relay",
    "http://a:1",
    "cellar",
    3,
    {"shop": SHOP, "crm": HeldSource(("crm.people",))},
    7.5,
)


def test_an_entry_is_read_as_it_was_written() -> None:
    read = decode_entry(ENTRY.encode())
    assert (read, read.renewed) == (ENTRY, 7.5)


@pytest.mark.parametrize(
    "change",
    [
        {"url": "ftp://a"},
        {"kind": "queen"},
        {"physicalSources": {"shop": {"sources": []}}},
        {"physicalSources": []},
        {"connections": None},
        {"room": ...},
    ],
)
def test_what_is_no_entry_is_refused(change: dict[str, object]) -> None:
    values = {k: v for k, v in (ENTRY.values() | change).items() if v is not ...}
    with pytest.raises(ValueError, match="it is no entry"):
        decode_entry(json.dumps(values).encode())


def test_nesting_without_end_is_no_entry() -> None:
    with pytest.raises(ValueError, match="no entry"):
        decode_entry(b"[" * 200_000)


def test_a_server_has_sources_only_if_it_has_all_of_them() -> None:
    assert ENTRY.has_all(("shop.orders", "crm.people"))
    assert not ENTRY.has_all(("shop.orders", "shop.items"))


def test_the_oldest_scn_is_that_of_the_source_that_goes_back_least() -> None:
    assert ENTRY.oldest_scn(("shop.orders",)) == 10
    assert ENTRY.oldest_scn(("crm.people",)) == -1
    assert ENTRY.oldest_scn(("crm.people", "shop.orders")) == 10
    assert ENTRY.oldest_scn(("shop.items",)) == -1
