"""Which of two relays captures: by the lease, and looked at before each window."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from databus.conf.settings import PhysicalSourceSettings
from databus.relay.capture.max_scn import FileMaxScn, RecordMaxScn
from databus.relay.capture.standby.role import NoOwnerError, Role, RoleChangedError
from databus.relay.capture.status import State
from databus.relay.ring.ring import Ring
from databus.relay.sources.epochs import Epoch, Executed
from databus.relay.sources.upstream.source import mark_of_window
from databus.schemas.log_mark import LogMark
from tests import PATIENCE_S
from tests.databus.leases.contenders import Unsteady
from tests.relay.log.gtids.windows import window

ONE, TWO = "mysql://databus@one", "mysql://databus@two"
TTL_S = 4.0


class Relay:
    """The role of one relay, and the state of its capture."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = folder / f"relay-{number}"
        self.folder.mkdir()
        self.records, self.state, self.changes = Unsteady(folder / "leases"), State.RUNNING, 0
        values = {
            "name": "shop",
            "uri": [ONE, TWO],
            "sources": ["shop.orders"],
            "start": "latest",
            "capture_lease_s": TTL_S,
            "switch_after_s": 0,
        }
        settings = PhysicalSourceSettings.model_validate(values)
        self.url = f"http://relay-{number}:11115"
        own = FileMaxScn(self.folder / "shop.scn")
        self.role = Role(settings, self.records, own, self.folder)
        self.role.ids = {"shop.orders": number}

    def enter(self) -> None:
        self.role.enter(self.url, lambda: self.state, self._note)

    def _note(self) -> None:
        self.changes += 1

    def settle(self) -> bool:
        return self.role.settle(lambda: False)


@pytest.fixture
def relays(tmp_path: Path) -> Iterator[tuple[Relay, Relay]]:
    """Two relays, of which the first captures."""
    first, second = Relay(tmp_path, 1), Relay(tmp_path, 2)
    with contextlib.ExitStack() as stack:
        for one in (first, second):
            stack.callback(one.role.leave, 10.0, gives_back=True)
            one.enter()
            assert one.settle() is (one is first)
        yield first, second


def wait_for_change(relay: Relay) -> None:
    end = time.monotonic() + PATIENCE_S
    with contextlib.suppress(RoleChangedError):
        while True:
            relay.role.check()
            assert time.monotonic() < end, "the role stays"
            time.sleep(0.01)


def test_the_owner_reads_the_database_and_the_other_one_the_owner(
    relays: tuple[Relay, Relay],
) -> None:
    first, second = relays
    assert first.role.upstream is None
    assert first.role.is_active
    assert second.role.upstream is not None
    assert second.role.upstream.uris == (f"databus+{first.url}",)
    assert second.role.upstream.start == "earliest"
    for one in relays:
        one.role.check()
        assert (one.role.status.owner, one.role.status.term) == (first.url, 1)
    assert not second.role.status.is_active


def test_a_relay_that_does_not_want_to_capture_hands_over_what_the_next_one_needs(
    relays: tuple[Relay, Relay],
) -> None:
    first, second = relays
    begun = Epoch(0, "server", TWO, 100, -1, "bin.000001", 100, None, 0)
    first.role.table.begin(begun)
    first.role.max_scn.save(120, 0, LogMark(120, '{"file": "bin"}'))
    first.role.table.note(Executed(120, "a:1-3"))
    first.role.table.save()
    first.state = State.PAUSED
    wait_for_change(second)
    assert second.changes == 1
    assert second.settle()
    assert not second.settle()  # a reconnection is no takeover
    assert second.role.upstream is None
    assert second.role.table.epochs == (begun,)
    assert second.role.table.executed == Executed(120, "a:1-3")
    assert (second.role.max_scn.load(), second.role.max_scn.mark()) == (
        120,
        LogMark(120, '{"file": "bin"}'),
    )
    assert second.role.known_ids() == {"shop.orders": 2}
    # The one of before was at work, and has not looked since.
    with pytest.raises(RoleChangedError):
        first.role.max_scn.save(130, 0)
    with pytest.raises(RoleChangedError):
        first.role.check()
    assert not first.settle()
    assert first.role.upstream is not None
    assert first.role.upstream.uri == f"databus+{second.url}"
    first.role.max_scn.save(130, 0)
    assert RecordMaxScn(first.records, "shop").load() == 120


def test_a_relay_that_cannot_capture_leaves_it_to_another_one(relays: tuple[Relay, Relay]) -> None:
    first, second = relays
    first.state = State.UNREACHABLE
    wait_for_change(second)
    assert second.settle()
    wait_for_change(first)
    assert not first.settle()
    # What it cannot reach now is the relay that captures: that is no reason to take nothing over.
    time.sleep(TTL_S / 2)
    second.state = State.PAUSED
    wait_for_change(first)
    assert first.settle()


def test_reading_begins_where_everything_is_known(relays: tuple[Relay, Relay]) -> None:
    first, second = relays
    assert first.role.begin_scn([120, 130]) == [120, 130]
    second.role._definitions.scn = 110
    assert second.role.begin_scn([120, 130]) == [120, 130]  # of a relay, it needs no definitions
    first.state = State.PAUSED
    wait_for_change(second)
    second.settle()
    assert second.role.begin_scn([120, 130]) == [120, 130, 110]
    assert second.role.begin_scn([]) == []
    second.role.proved()
    assert second.role.begin_scn([120]) == [120]


def test_each_kind_of_log_is_proved_by_its_own_marks(relays: tuple[Relay, Relay]) -> None:
    first, second = relays
    stored = [LogMark(5, '{"file": "bin"}'), mark_of_window(7, 7, 70)]
    assert first.role.marks(stored) == stored[:1]
    ring = Ring.open(second.folder / "shop.ring", "shop", 1 << 20)
    ring.append([window(9, None)])
    ring.close()
    (newest,) = set(second.role.marks(stored)) - set(stored)
    assert newest.scn == 9


def test_while_the_coordinator_is_away_the_owner_stops_and_nobody_takes_over(
    relays: tuple[Relay, Relay],
) -> None:
    first, second = relays
    first.records.is_down = second.records.is_down = True
    wait_for_change(first)
    assert "it is down" in first.role.status.problem
    with pytest.raises(NoOwnerError, match=r"nobody knows which relay captures.*it is down"):
        first.settle()
    second.role.check()
    time.sleep(TTL_S)
    second.role.check()  # it goes on to read from there, whatever comes
    first.records.is_down = False
    assert first.settle() is False  # the same term goes on: nobody had it meanwhile
    assert first.role.is_active
    second.records.is_down = False


def test_a_coordinator_that_has_lost_the_lease_never_has_two_owners(
    relays: tuple[Relay, Relay],
) -> None:
    first, second = relays
    keeper = first.role._keeper
    assert keeper is not None
    keeper.stop(10.0, gives_back=False)  # as if it stood still
    (lease,) = (second.folder.parent / "leases" / "leases").glob("capture_shop*.json")
    lease.unlink()
    wait_for_change(second)
    end = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(RoleChangedError, NoOwnerError):
            if second.settle():
                break
        assert time.monotonic() < end, "the second does not take over"
    assert second.role.status.term == 2  # not 1 again: that was the first one's
    assert not first.role.is_active
    with pytest.raises(RoleChangedError):
        first.role.max_scn.save(130, 0)


def test_a_relay_at_the_url_of_another_one_says_so(
    relays: tuple[Relay, Relay], tmp_path: Path
) -> None:
    third = Relay(tmp_path, 3)
    third.url = relays[0].url
    third.enter()
    with pytest.raises(NoOwnerError, match="each needs a `public_url` of its own"):
        third.settle()
    third.role.leave(10.0, gives_back=True)


def test_the_lease_is_kept_while_an_order_is_carried_out(relays: tuple[Relay, Relay]) -> None:
    first, second = relays
    with first.role.kept():
        first.state = State.PAUSED
        time.sleep(1.0)
        first.role.check()
        assert not second.role.status.is_active
    wait_for_change(second)


def test_before_anybody_has_the_lease_capture_waits_and_can_be_stopped(tmp_path: Path) -> None:
    one = Relay(tmp_path, 1)
    with pytest.raises(RoleChangedError):
        one.role.settle(lambda: True)
    with pytest.raises(NoOwnerError, match="no relay captures"):
        one.settle()
    assert one.role.status.term is None
    one.role.leave(1.0, gives_back=True)
    one.role.leave(1.0, gives_back=True)
