"""A made-up cluster: groups of which one is halted, a tree with a dead relay, a chain, a lease."""

from __future__ import annotations

import time
from typing import Any

from databus.relay.cluster.models import (
    Chains,
    GroupSummary,
    GroupsView,
    GroupView,
    LeasesView,
    ServersView,
)

WRITTEN = "<b>bil/ling</b>"
ALONE = {
    "groups": GroupsView(coordinator=None, groups=[], left_out=0),
    "leases": LeasesView(coordinator=None, leases=[], left_out=0),
    "servers": ServersView(coordinator=None, servers=[]),
    "chain": Chains(chains=[]),
}
_URL = "zookeeper://zk-1:2181,zk-2:2181/databus"


def make_summary(name: str, **changes: Any) -> GroupSummary:
    """Return a group of two processes."""
    found: dict[str, Any] = {
        "name": name,
        "sources": ["shop.orders"],
        "partitions": 32,
        "partition_by": [],
        "generation": 0,
        "room": "",
        "members": 2,
        "owned": 32,
        "halted": "",
        "behind_s": 1.4,
        "unknown_lags": 0,
        "moves": 16,
        "all_moves": 48,
        "problem": "",
    }
    return GroupSummary.model_validate(found | changes)


def make_cluster(problem: str = "") -> dict[str, Any]:
    """Return what a relay says, by path."""
    now = time.time()
    coordinator = {"url": _URL, "seen_at": now - 1.2, "problem": problem}
    groups = [
        make_summary(WRITTEN),
        make_summary(
            "reports",
            halted="resized by host-a:4711, term 3",
            owned=0,
            behind_s=None,
            unknown_lags=32,
        ),
        make_summary("mails", members=0, owned=0, moves=0),
    ]
    return {
        "groups": GroupsView.model_validate(
            {"coordinator": coordinator, "groups": groups, "left_out": 0}
        ),
        "leases": LeasesView.model_validate(
            {
                "coordinator": coordinator,
                "leases": [
                    _lease("capture/shop", "relay-a:4711", 7, "held", now),
                    _lease("group/mails/members/0", "", 1, "free", now),
                ],
                "left_out": 0,
            }
        ),
        "servers": ServersView.model_validate(
            {
                "coordinator": coordinator,
                "servers": [
                    _server("c", "http://relay-c:11115", "b", 2, now, room="attic"),
                    _server("a", "http://relay-a:11115", None, 0, now, room="cellar"),
                    _server("b", "http://relay-b:11115", "a", 1, now, state="gone"),
                    _server("s", "http://boot-1:11116", "a", 1, now, kind="bootstrap"),
                ],
            }
        ),
        "chain": Chains.model_validate({"chains": [_chain(now)]}),
        "group": make_group(now, coordinator),
    }


def make_group(now: float, coordinator: Any) -> GroupView:
    """Return the first group with its partitions."""
    names = ["host-a:4711:9f31aa", "host-b:4712:77aa01"]
    partitions = [
        {
            "partition": number,
            "owner": names[number % 2],
            "assigned": names[1],
            "term": 3,
            "taken_at": now - 754,
            "holding": "held" if number % 2 else "unknown",
            "state": "online" if number else "not_begun",
            "scn": (14 << 32) + number if number else None,
            "committed_at": now - 1.4 if number else None,
            "behind_s": 1.4 if number else None,
            "problem": "",
        }
        for number in range(32)
    ]
    found = {
        "coordinator": coordinator,
        "summary": make_summary(WRITTEN),
        "processes": [],
        "partitions": partitions,
        "partitions_at": now - 2.5,
        "newest_scn": (14 << 32) + 99,
        "newest_at": now,
        "moves": [
            {
                "at": now - 754,
                "generation": 0,
                "former": names[0],
                "owner": names[1],
                "partitions": list(range(1, 32, 2)),
            }
        ],
        "moves_since": now - 86_400,
    }
    return GroupView.model_validate(found)


def _lease(name: str, owner: str, term: int, holding: str, now: float) -> dict[str, Any]:
    return {
        "name": name,
        "owner": owner,
        "term": term,
        "ttl_s": 10.0,
        "renewed_at": now - 2,
        "holding": holding,
        "depends_on": None,
    }


def _server(
    instance: str,
    url: str,
    parent: str | None,
    depth: int,
    now: float,
    *,
    kind: str = "relay",
    state: str = "alive",
    room: str = "",
) -> dict[str, Any]:
    source = {
        "name": "shop",
        "sources": ["shop.orders"],
        "oldest_scn": 1,
        "newest_scn": (14 << 32) + 99,
        "newest_at": now - 1,
        "behind_s": 0.0 if state == "alive" else 42.0,
        "reads": "" if parent is None else f"http://relay-{parent}:11115",
        "parent": parent,
        "depth": depth,
        "is_in_loop": False,
        "is_draining": False,
    }
    return {
        "instance": instance,
        "kind": kind,
        "url": url,
        "room": room,
        "connections": 12,
        "state": state,
        "renewed_at": now - 2,
        "seen_at": now - 60,
        "sources": [source],
    }


def _chain(now: float) -> dict[str, Any]:
    def link(name: str, reads: str) -> dict[str, Any]:
        return {
            "instance": name,
            "name": name,
            "url": f"http://{name}",
            "room": "",
            "reads": reads,
            "state": "running",
            "is_connected": True,
            "newest_scn": 5,
            "newest_at": now,
            "behind_s": 0.1,
            "is_draining": False,
            "problem": "",
        }

    links = [link("here", "http://relay-b:11115"), link("relay-b:11115", "")]
    return {"physical_source": "shop", "depth": 1, "links": links, "loop": ""}
