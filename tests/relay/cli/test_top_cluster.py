"""What `databus top` shows of groups, servers, leases and chains."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console, Group

from databus.relay.cli.top_cluster import ClusterPicture, draw_cluster, lines_of, tree_of
from databus.relay.cluster.models import Chains, ServersView
from tests.page.fake_cluster import ALONE, WRITTEN, make_cluster, make_summary


def picture(said: dict[str, Any]) -> ClusterPicture:
    return ClusterPicture(said["groups"], said["leases"], said["servers"], said["chain"])


def drawn(cluster: ClusterPicture | None, columns: int = 80) -> list[str]:
    console = Console(file=StringIO(), width=columns, color_system=None, highlight=False)
    console.print(Group(*draw_cluster(cluster, 2e9, "")))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(len(line.rstrip()) <= columns for line in text.splitlines())
    return text.splitlines()


def test_a_relay_that_is_alone_and_one_of_an_earlier_version_show_nothing() -> None:
    assert draw_cluster(picture(ALONE), 0.0, "") == []
    assert draw_cluster(None, 0.0, "") == []


@pytest.mark.parametrize("columns", [80, 120])
def test_each_thing_has_its_line_and_what_needs_a_person_comes_first(columns: int) -> None:
    lines = drawn(picture(make_cluster()), columns)
    text = "\n".join(lines)
    assert "coordinator zookeeper://zk-1:2181" in text
    names = [line.split()[0] for line in lines if "/32" in line]
    assert names == ["reports", WRITTEN, "mails"]
    assert "reports: halted: resized by host-a:4711, term 3" in text
    assert "unknown" in next(line for line in lines if line.startswith("reports"))
    assert next(line for line in lines if "relay-b:11115  " in line).split()[1:3] == ["gone", "1"]
    assert "lease capture/shop: relay-a:4711, term 7, held" in text
    assert "group/mails" not in text  # its processes are counted with the group
    assert lines[-1].strip() == "shop: here < relay-b:11115 < database"


def test_a_coordinator_that_is_away_is_the_first_line() -> None:
    lines = drawn(picture(make_cluster("zookeeper://zk-1 cannot be used now:\n it is down")))
    assert lines[1].startswith("COORDINATOR seen ")
    assert "zookeeper://zk-1 cannot" in lines[1]


def test_so_many_groups_are_shown_and_the_rest_is_counted() -> None:
    said = make_cluster()
    many = [make_summary(f"group-{number:03}") for number in range(50)]
    said["groups"] = said["groups"].model_copy(update={"groups": many})
    cluster = picture(said)
    assert "and 42 more" in "\n".join(drawn(cluster))
    parts = draw_cluster(cluster, 2e9, "")
    assert lines_of(parts) == len(drawn(cluster))


def test_a_loop_and_a_silent_relay_are_named() -> None:
    said = make_cluster()
    (chain,) = said["chain"].chains
    loop = chain.model_copy(update={"loop": "a reads b, which reads a", "depth": None})
    silent = chain.links[1].model_copy(update={"problem": "does not\nanswer"})
    cut = chain.model_copy(update={"links": [chain.links[0], silent], "depth": None})
    above = chain.model_copy(update={"links": chain.links[:1], "depth": None})
    said["chain"] = Chains(chains=[loop, cut, above])
    text = "\n".join(drawn(picture(said)))
    assert "read in a circle: a reads b, which reads a" in text
    assert "here < relay-b:11115: does not answer" in text
    assert "here < relay-b:11115 (not known yet)" in text


def test_servers_in_a_circle_are_each_shown_once() -> None:
    servers: ServersView = make_cluster()["servers"]
    a, *others = servers.servers[1], servers.servers[0], *servers.servers[2:]
    source = a.sources[0].model_copy(update={"parent": "c", "is_in_loop": True, "depth": None})
    looped = [a.model_copy(update={"sources": [source]}), *others]
    found = [one.instance for _, one, _ in tree_of(looped)]
    assert sorted(found) == ["a", "b", "c", "s"]
