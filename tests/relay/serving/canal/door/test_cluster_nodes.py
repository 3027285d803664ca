"""Two relays of a destination, and a real ZooKeeper: one serves it, the other goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from databus.leases.errors import LeaseError
from databus.relay.serving.canal.consuming.cursor_store import CursorTakenError
from databus.relay.serving.canal.consuming.cursors import Cursor
from databus.relay.serving.canal.consuming.zookeeper_cursors import ZookeeperCursors
from databus.relay.serving.canal.consuming.zookeeper_nodes import CanalNodes
from databus.relay.serving.canal.door.cluster_nodes import ClusterNodes, Running
from databus.relay.serving.canal.protocol.errors import CanalError
from databus.schemas.checkpoint import Checkpoint
from tests.relay.fakes import wait_until
from tests.relay.serving.canal.door.served_canal import ServedCanal, drain, rows
from tests.relay.serving.canal.raw_client import RefusedError
from tests.zookeeper_server import PrivateZookeeper

KEY = ("example", 1001)


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[PrivateZookeeper]:
    with PrivateZookeeper() as server:
        yield server


@pytest.fixture
def nodes(zookeeper: PrivateZookeeper) -> Iterator[CanalNodes]:
    found = CanalNodes(zookeeper.url())
    yield found
    for client in ("1001", "7"):
        for name in ("cursor", "filter"):
            found.delete(f"destinations/example/{client}/{name}")
    found.close()


class Served:
    """Two relays with the same rows."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.first, self.second = self.open("a"), self.open("b")

    def open(self, name: str) -> ServedCanal:
        relay = {"coordinator": f"{self.url}/databus"}
        found = ServedCanal(self.folder / name, relay=relay, zookeeper=True)
        found.put(*(rows(scn) for scn in range(1, 6)))
        return found

    def close(self) -> None:
        self.first.close()
        self.second.close()


@pytest.fixture
def served(tmp_path: Path, zookeeper: PrivateZookeeper, nodes: CanalNodes) -> Iterator[Served]:
    for name in "ab":
        (tmp_path / name).mkdir()
    found = Served(tmp_path, zookeeper.url())
    yield found
    found.close()


def is_active(canal: ServedCanal) -> bool:
    return bool(canal.view()["destinations"][0]["isActive"])


def test_one_relay_serves_and_the_other_goes_on_where_the_client_was(
    served: Served, nodes: CanalNodes
) -> None:
    first, second = served.first, served.second
    wait_until(lambda: is_active(first) or is_active(second))
    if is_active(second):
        first, second = second, first
    running = nodes.get("destinations/example/running")
    assert running is not None
    assert json.loads(running[0]) == {"active": True, "address": first.address}
    for path in (f"cluster/{first.address}", f"destinations/example/cluster/{second.address}"):
        wait_until(lambda path=path: nodes.get(path) is not None)  # type: ignore[misc]
    wait_until(lambda: second.view()["destinations"][0]["elsewhere"] == first.address)
    with pytest.raises(RefusedError, match=f"it is served at {first.address}"):
        second.client()
    client = first.client(filter_text=r"shop\..*")
    batch = client.get(1)
    client.ack(batch.id)
    first.close()
    wait_until(lambda: is_active(second))
    assert batch.keys + drain(second.connect().login()) == [10, 20, 30, 40, 50]
    kept = nodes.get("destinations/example/1001/filter")
    assert kept is not None
    assert kept[0] == rb"shop\..*"


def cursor(scn: int) -> Cursor:
    return Cursor("example", 1001, "", {"shop": Checkpoint.at(scn)})


def test_a_relay_that_was_followed_cannot_move_a_cursor(nodes: CanalNodes) -> None:
    frozen, follower = ZookeeperCursors(nodes), ZookeeperCursors(nodes)
    frozen.write(cursor(5))
    assert follower.read(KEY) == cursor(5)
    follower.write(cursor(9))
    with pytest.raises(CursorTakenError, match="another relay has written it"):
        frozen.write(cursor(6))
    assert follower.read(KEY) == cursor(9)
    assert frozen.read(KEY) == cursor(9)
    frozen.write(cursor(10))
    follower.forget("example")
    with pytest.raises(CursorTakenError):
        follower.write(cursor(9))


def test_a_write_whose_answer_was_lost_is_made_again(nodes: CanalNodes) -> None:
    cursors = ZookeeperCursors(nodes)
    cursors.write(cursor(5))
    # Written, but the version in its answer is not known.
    nodes.set("destinations/example/1001/cursor", *_content(nodes))
    cursors.write(cursor(6))
    assert cursors.read(KEY) == cursor(6)


def _content(nodes: CanalNodes) -> tuple[bytes]:
    found = nodes.get("destinations/example/1001/cursor")
    assert found is not None
    return (found[0],)


def test_a_cursor_looks_as_canals_own_and_can_be_removed(nodes: CanalNodes) -> None:
    cursors = ZookeeperCursors(nodes)
    cursors.write(Cursor("example", 1001, "", {"shop": Checkpoint.at((3 << 32) + 120)}))
    value = json.loads(_content(nodes)[0])
    assert value["@type"].endswith(".LogPosition")
    assert value["postion"]["journalName"] == "mysql-bin.000003"
    assert value["postion"]["position"] == 120
    cursors.remove(KEY)
    assert nodes.get("destinations/example/1001") is None
    assert cursors.read(KEY) is None


def test_a_cursor_of_a_canal_server_is_refused(nodes: CanalNodes) -> None:
    nodes.create("destinations/example/1001/cursor", b'{"postion": {}}')
    with pytest.raises(CanalError, match="a Canal server has written it"):
        ZookeeperCursors(nodes).read(KEY)


def test_a_relay_that_cannot_reach_zookeeper_serves_no_more() -> None:
    now_s = 100.0
    told: list[tuple[str, Running]] = []

    class Away:
        session_id = 5

        def get(self, name: str) -> None:
            raise LeaseError("away")

    cluster = ClusterNodes(
        Away(),  # type: ignore[arg-type]
        "127.0.0.1:1",
        ["example"],
        lambda _: True,
        lambda name, running: told.append((name, running)),
        lambda: now_s,
    )
    cluster.look()
    assert (told, cluster.problem) == ([], "away")
    now_s = 107.5
    cluster.look()
    assert told == [("example", Running(False))]
