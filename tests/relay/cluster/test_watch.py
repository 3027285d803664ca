"""A watch of a coordinator that dies, stands still or is not there: requests are answered."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from databus.leases.file_records import FileRecords
from databus.relay.cluster.coordinator import Coordinator
from databus.relay.cluster.watch import ClusterWatch
from databus.servers.entry import HeldSource, ServerEntry
from databus.servers.places import open_directory
from tests import PATIENCE_S
from tests.relay.fakes import ServedRelay, wait_until
from tests.zookeeper_server import PrivateZookeeper

PATHS = ("groups", "leases", "servers", "chain")


def api(relay: ServedRelay, path: str) -> Any:
    answer = relay.get(f"/api/v1/{path}")
    assert answer.status == 200, answer.body
    return json.loads(answer.body)


def test_a_dead_coordinator_is_named_beside_what_was_seen_last(tmp_path: Path) -> None:
    with PrivateZookeeper() as zookeeper:
        relay = ServedRelay(tmp_path, coordinator=zookeeper.url("/dead"))
        try:
            wait_until(lambda: len(api(relay, "servers")["servers"]) == 1, PATIENCE_S)
            url = api(relay, "servers")["coordinator"]["url"]
            zookeeper.kill()
            wait_until(lambda: bool(api(relay, "servers")["coordinator"]["problem"]), PATIENCE_S)
            found = api(relay, "servers")
            assert found["coordinator"]["url"] == url
            assert "cannot be used now" in found["coordinator"]["problem"]
            assert len(found["servers"]) == 1
            assert found["coordinator"]["seenAt"] > 0
            assert "databus_coordinator_answers 0.0" in relay.get("/metrics").body.decode()
            assert "databus_group_members{" not in relay.get("/metrics").body.decode()
            zookeeper.start()
            wait_until(lambda: not api(relay, "servers")["coordinator"]["problem"], PATIENCE_S)
        finally:
            relay.close()


def test_one_that_never_answered_is_named_too_and_no_password_is_shown(tmp_path: Path) -> None:
    relay = ServedRelay(tmp_path, coordinator="zookeeper://ann:secret@127.0.0.1:1/nowhere")
    try:
        for path in PATHS:
            api(relay, path)
        wait_until(lambda: bool(api(relay, "groups")["coordinator"]["problem"]), PATIENCE_S)
        for path in PATHS:
            assert "secret" not in json.dumps(api(relay, path))
        assert api(relay, "groups")["coordinator"]["seenAt"] is None
        answer = relay.get("/api/v1/groups/billing")
        assert answer.status == 404
        assert "cannot be used now" in json.loads(answer.body)["message"]
    finally:
        relay.close()


def test_without_a_coordinator_and_a_chain_nothing_is_looked_at(tmp_path: Path) -> None:
    relay = ServedRelay(tmp_path)
    try:
        assert api(relay, "groups") == {"coordinator": None, "groups": [], "leftOut": 0}
        assert api(relay, "servers") == {"coordinator": None, "servers": []}
        (chain,) = api(relay, "chain")["chains"]
        assert (chain["depth"], len(chain["links"])) == (0, 1)
        assert "cluster" not in {one.name for one in threading.enumerate()}
    finally:
        relay.close()


def test_a_mistake_in_looking_is_a_problem_and_looking_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = ClusterWatch(f"file:{tmp_path}", dict, every_s=0.01)
    looks: list[int] = []

    def look(_self: Coordinator) -> None:
        looks.append(1)
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(Coordinator, "look", look)
    watch.ask()
    wait_until(lambda: len(looks) > 2)
    watch.stop(PATIENCE_S)
    assert "ZeroDivisionError" in watch.problem


def entry(instance: str, renewed: float, **held: HeldSource) -> ServerEntry:
    return ServerEntry(instance, "relay", f"http://{instance}:1", "", 0, held, renewed)


@pytest.fixture
def wall() -> list[float]:
    return [1000.0]


def test_a_server_is_alive_once_its_entry_was_renewed_and_then_gone(
    tmp_path: Path, wall: list[float]
) -> None:
    url, shop = f"file:{tmp_path}", HeldSource(("shop.orders",), 1, 9)
    coordinator = Coordinator(url, lambda: wall[0])
    server = open_directory(url)

    def states() -> dict[str, Any]:
        found = coordinator.look().servers
        return {one.entry.instance: (one.is_renewed, one.is_gone) for one in found}

    server.put(entry("a", 1.0, shop=shop))
    assert states() == {"a": (None, False)}  # who knows when that was written
    wall[0] += 2
    server.put(entry("a", 2.0, shop=shop))
    assert states() == {"a": (True, False)}
    wall[0] += 100  # nobody has looked meanwhile
    assert states() == {"a": (None, False)}
    server.remove("a")
    wall[0] += 2
    assert states() == {"a": (False, True)}
    wall[0] += 601
    assert states() == {}
    coordinator.close()


def test_partitions_are_read_for_a_tenth_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    real: Callable[..., Any] = FileRecords.read

    def read(self: FileRecords, name: str, *more: Any) -> Any:
        reads.append(name)
        return real(self, name, *more)

    monkeypatch.setattr(FileRecords, "read", read)
    coordinator = Coordinator(f"file:{tmp_path}")
    coordinator._read_again_s = float("inf")
    coordinator.look()
    assert not [name for name in reads if name.startswith("checkpoints/")]
    coordinator.close()
