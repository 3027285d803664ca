"""The tree of servers: which one reads from which, and how many are above it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from databus.relay.cluster.coordinator import SeenServer
from databus.servers.entry import HeldSource

_PORTS = {"http": 80, "https": 443}


class Place(NamedTuple):
    """The place of a physical source at a server; see `ServedSourceView`."""

    parent: str | None
    depth: int | None
    is_in_loop: bool


def url_key(url: str) -> tuple[str, int]:
    """Return what two spellings of a server's URL have in common."""
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    try:
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        port = 0
    return ("127.0.0.1" if host in ("localhost", "::1") else host), port


def places(servers: Sequence[SeenServer], name: str) -> Mapping[str, Place]:
    """Return the place of a physical source at each server that has it, by instance."""
    having = {
        one.entry.instance: one.entry.physical_sources[name]
        for one in servers
        if name in one.entry.physical_sources
    }
    by_url = {
        url_key(one.entry.url): one.entry.instance
        for one in sorted(servers, key=lambda one: not one.is_gone)  # who is there comes last
        if one.entry.kind == "relay" and one.entry.instance in having
    }
    parents = {
        instance: by_url.get(url_key(held.reads)) if held.reads else None
        for instance, held in having.items()
    }
    return {instance: _place(instance, having, parents) for instance in having}


def _place(
    instance: str, having: Mapping[str, HeldSource], parents: Mapping[str, str | None]
) -> Place:
    passed, at, depth = {instance}, instance, 0
    while having[at].reads:
        above = parents[at]
        if above is None:
            return Place(parents[instance], None, False)
        if above in passed:
            return Place(parents[instance], None, True)
        passed.add(above)
        at, depth = above, depth + 1
    return Place(parents[instance], depth, False)
