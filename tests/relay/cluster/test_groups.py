"""What a relay says of a group: true, while its processes come, die and stand still."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from databus.client.checkpoints.fenced import RecordCheckpoints
from databus.client.membership.membership import Membership
from databus.groups.group_record import GroupFacts, Process
from databus.groups.names import checkpoint_name
from databus.groups.reading import PartitionState
from databus.leases.places import open_records
from databus.leases.sightings import Holding
from databus.leases.store import LeaseStore
from databus.relay.cluster.coordinator import SeenLease
from databus.relay.cluster.groups import Newest, behind_s, holding_of, partition_view
from databus.schemas.checkpoint import Checkpoint
from tests import PATIENCE_S
from tests.client.membership.group_process import FACTS as OF_PROCESSES
from tests.relay.fakes import PERSON, ServedRelay, insert, transaction, wait_until
from tests.zookeeper_server import PrivateZookeeper

pytest_plugins = ["tests.record_stores"]

TTL_S = 3.0
HELL = "../bil/ling?#%2F <script>alert(1)</script>\n'\"`\\ ✓ \u202e" + "x" * 300


@pytest.fixture(scope="session", params=["file", "zookeeper"])
def kind(request: pytest.FixtureRequest) -> str:
    """A kind of store, whose server runs already; no test has left it behind."""
    if request.param == "zookeeper":
        request.getfixturevalue("zookeeper")
    return str(request.param)


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if kind == "file":
        return f"file:{tmp_path / 'store'}"
    zookeeper: PrivateZookeeper = request.getfixturevalue("zookeeper")
    return zookeeper.url(f"/cluster-{tmp_path.name}")


@pytest.fixture
def relay(url: str, tmp_path: Path) -> Iterator[ServedRelay]:
    served = ServedRelay(tmp_path, coordinator=url)
    yield served
    served.close()


def api(relay: ServedRelay, path: str) -> Any:
    answer = relay.get(f"/api/v1/{path}")
    assert answer.status == 200, answer.body
    return json.loads(answer.body)


def shown(relay: ServedRelay, name: str) -> Any:
    return api(relay, f"groups/{quote(name, safe='')}")


def started(url: str, log: Path, ended: ExitStack) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.client.membership.group_process", url, str(TTL_S)]
    process = subprocess.Popen([*command, str(log)])
    ended.callback(process.wait)
    ended.callback(process.kill)
    return process


def owners(relay: ServedRelay) -> dict[str | None, int]:
    found = shown(relay, "billing")["partitions"]
    names = [one["owner"] for one in found]
    return {name: names.count(name) for name in names}


def test_owners_terms_and_moves_of_two_processes_of_which_one_is_killed(
    relay: ServedRelay, url: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.touch()
    with ExitStack() as ended:
        first, second = (started(url, log, ended) for _ in range(2))
        names = [f"host:{one.pid}" for one in (first, second)]
        halves = dict.fromkeys(names, OF_PROCESSES.partitions // 2)
        wait_until(lambda: bool(api(relay, "groups")["groups"]), PATIENCE_S)
        wait_until(lambda: owners(relay) == halves, PATIENCE_S)

        def are_held() -> bool:
            return {one["holding"] for one in shown(relay, "billing")["partitions"]} == {"held"}

        wait_until(are_held, PATIENCE_S)
        found = shown(relay, "billing")
        assert sorted(one["process"] for one in found["processes"]) == sorted(names)
        assert found["summary"]["owned"] == OF_PROCESSES.partitions
        begun = {}
        for line in log.read_text().splitlines():
            if line.startswith("begin"):
                _, _pid, partition, term = line.split()[-4:]
                begun[int(partition)] = int(term)
        assert {one["partition"]: one["term"] for one in found["partitions"]} == begun
        first.send_signal(signal.SIGSTOP)
        wait_until(lambda: owners(relay) == {names[1]: OF_PROCESSES.partitions}, PATIENCE_S)
        first.kill()

        def moved() -> list[Any]:
            moves = shown(relay, "billing")["moves"]
            return [one for one in moves if (one["former"], one["owner"]) == (names[0], names[1])]

        wait_until(lambda: bool(moved()), PATIENCE_S)
        wait_until(
            lambda: len({n for one in moved() for n in one["partitions"]}) >= halves[names[0]],
            PATIENCE_S,
        )
        (summary,) = api(relay, "groups")["groups"]
        assert summary["members"] == 1
        assert summary["allMoves"] >= halves[names[0]]
        second.kill()
        # Nobody is left to take it from it: the relay finds by itself that it has run out.
        wait_until(lambda: shown(relay, "billing")["summary"]["owned"] == 0, PATIENCE_S)
        leases = {one["name"]: one for one in api(relay, "leases")["leases"]}
        slots = [one for name, one in leases.items() if name.startswith("group/billing/members/")]
        assert "run_out" in {one["holding"] for one in slots}
        assert "held" not in {one["holding"] for one in slots}


def joined(url: str, facts: GroupFacts) -> Iterator[Membership]:
    records = open_records(url)
    membership = Membership(records, LeaseStore(records), facts, Process("host:1"))
    membership.join(600.0)
    membership.look()
    yield membership
    records.close()


def test_lags_are_those_of_checkpoints_behind_the_newest_window(
    relay: ServedRelay, url: str
) -> None:
    facts = GroupFacts("billing", 4, (PERSON.source,))
    for membership in joined(url, facts):
        for partition in range(4):
            assert membership.acquire(partition) == 1
        relay.put(*(transaction(scn, insert(scn)) for scn in (10, 20, 30)))
        records = open_records(url)
        store = RecordCheckpoints(records)
        for partition, scn in ((0, 30), (1, 10)):
            name = checkpoint_name("billing", 0, partition)
            at = Checkpoint.flexible().after_window(scn, scn * 1_000_000_000)
            store.begin_term(name, facts.sources, 1)
            store.save_under(name, facts.sources, at, 1)
        records.close()

        def lags() -> list[Any]:
            return [one["behindS"] for one in shown(relay, "billing")["partitions"]]

        wait_until(lambda: bool(api(relay, "groups")["groups"]), PATIENCE_S)
        wait_until(lambda: lags() == [0.0, 20.0, None, None], PATIENCE_S)
        found = shown(relay, "billing")
        assert [one["state"] for one in found["partitions"]] == [
            *["online"] * 2,
            *["not_begun"] * 2,
        ]
        assert (found["newestScn"], found["summary"]["behindS"]) == ("30", None)
        assert found["summary"]["unknownLags"] == 2


@pytest.mark.parametrize("kind", ["file"], indirect=True)
def test_a_name_from_hell_is_a_name(relay: ServedRelay, url: str) -> None:
    for _ in joined(url, GroupFacts(HELL, 2, (PERSON.source,), room="\x00")):
        wait_until(lambda: bool(api(relay, "groups")["groups"]), PATIENCE_S)
        (summary,) = api(relay, "groups")["groups"]
        assert summary["name"] == HELL
        assert shown(relay, HELL)["summary"]["partitions"] == 2
        assert relay.get("/metrics").status == 200
    answer = relay.get(f"/api/v1/groups/{quote('others/', safe='')}")
    assert answer.status == 404
    assert "others/" in json.loads(answer.body)["message"]


def test_a_group_of_1024_partitions_is_shown_whole(relay: ServedRelay, url: str) -> None:
    for membership in joined(url, GroupFacts("wide", 1024, (PERSON.source,))):
        for partition in range(0, 1024, 4):
            membership.acquire(partition)
        membership.note_taken(range(0, 1024, 4))
        wait_until(lambda: bool(api(relay, "groups")["groups"]), PATIENCE_S)
        wait_until(lambda: api(relay, "groups")["groups"][0]["owned"] == 256, PATIENCE_S)
        found = shown(relay, "wide")
        assert [one["partition"] for one in found["partitions"]] == list(range(1024))
        assert {one["owner"] for one in found["partitions"][::4]} == {"host:1"}
        (move,) = found["moves"]
        assert move["partitions"] == list(range(0, 1024, 4))
        assert len(api(relay, "leases")["leases"]) == 1
        assert len(api(relay, "leases?dependent=true")["leases"]) == 1 + 1024


# -- rules ----------------------------------------------------------------------------------------

AT_20 = Checkpoint.flexible().after_window(20, 20_000_000_000)


@pytest.mark.parametrize(
    ("checkpoint", "newest", "lag"),
    [
        (AT_20, Newest(20, 20.0, True), 0.0),
        (AT_20, Newest(30, 33.5, True), 13.5),
        (AT_20, Newest(30, 33.5, False), 13.5),
        (AT_20, Newest(20, 20.0, False), None),  # there may be later ones
        (AT_20, None, None),
        (None, Newest(30, 30.0, True), None),
        (Checkpoint.at(20), Newest(30, 30.0, True), None),  # without a time
        (AT_20, Newest(30, 0.0, True), None),
    ],
)
def test_a_lag_that_is_not_known_is_none_and_never_0(
    checkpoint: Checkpoint | None, newest: Newest | None, lag: float | None
) -> None:
    scn = None if checkpoint is None else checkpoint.window_scn
    assert behind_s(checkpoint, scn, newest) == lag


@pytest.mark.parametrize("holding", list(Holding))
def test_a_partition_is_held_as_its_owners_lease_is(holding: Holding) -> None:
    leases = {"m": SeenLease("m", "host:1", 7, 10.0, None, holding)}
    wanted = Holding.RUN_OUT if holding is Holding.FREE else holding
    assert holding_of(("m", 7), leases) is wanted
    assert holding_of(("m", 6), leases) is Holding.RUN_OUT
    assert holding_of(("other", 7), leases) is Holding.UNKNOWN
    assert holding_of(None, leases) is Holding.FREE


def test_what_cannot_be_read_is_no_partition_that_has_not_begun() -> None:
    view = partition_view(PartitionState(3, problem="its checksum is wrong"), {}, None)
    assert (view.state, view.problem) == ("unreadable", "its checksum is wrong")
