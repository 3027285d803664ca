"""Batches: ids from 1, acknowledged in order, rolled back to what was acknowledged."""

from __future__ import annotations

import pytest

from databus.relay.ring.event_selector import WINDOW_DONE
from databus.relay.serving.canal.consuming import batches as module
from databus.relay.serving.canal.consuming.batches import Batches, Inside, Place
from databus.relay.serving.canal.protocol.errors import CanalError

BEGIN = {"shop": Place((0, WINDOW_DONE))}


def at(scn: int) -> Place:
    return Place((scn, WINDOW_DONE))


def sent(*scns: int) -> Batches:
    found = Batches(BEGIN)
    assert [found.send({"shop": at(scn)}) for scn in scns] == list(range(1, len(scns) + 1))
    return found


def test_batches_are_acknowledged_in_order() -> None:
    found = sent(5, 6, 7)
    found.acknowledge(1, 1001)
    assert (found.acked["shop"], found.sent["shop"], found.outstanding) == (at(5), at(7), 2)
    found.acknowledge(2, 1001)
    found.acknowledge(3, 1001)
    assert (found.acked["shop"], found.outstanding, found.oldest) == (at(7), 0, None)


@pytest.mark.parametrize("settle", [Batches.acknowledge, Batches.roll_back])
def test_any_but_the_oldest_is_refused_and_changes_nothing(settle: object) -> None:
    found = sent(5, 6)
    assert callable(settle)
    with pytest.raises(CanalError, match="batchId:2 is not the firstly:1"):
        settle(found, 2, 1001)
    with pytest.raises(CanalError, match="clientId:1001 batchId:9 is not exist"):
        settle(found, 9, 1001)
    assert (found.acked, found.outstanding) == (BEGIN, 2)


def test_a_rollback_forgets_all_batches_and_ids_go_on() -> None:
    for batch_id in (0, 2):
        found = sent(5, 6, 7)
        found.acknowledge(1, 1001)
        found.roll_back(batch_id, 1001)
        assert (found.sent["shop"], found.outstanding) == (at(5), 0)
        assert found.send({"shop": at(6)}) == 4
    Batches(BEGIN).roll_back(0, 1001)  # nothing is outstanding: no error


def test_what_is_passed_by_is_acknowledged_with_the_last_batch() -> None:
    found = Batches(BEGIN)
    assert found.pass_by({"shop": at(3)})
    assert found.acked["shop"] == at(3)
    found.send({"shop": at(5)})
    assert not found.pass_by({"shop": at(9)})
    assert found.acked["shop"] == at(3)
    found.acknowledge(1, 1001)
    assert found.acked["shop"] == at(9)


def test_a_source_that_begins_later_is_in_every_batch() -> None:
    found = sent(5, 6)
    found.begin("crm", at(70))
    found.acknowledge(1, 1001)
    assert found.acked == {"shop": at(5), "crm": at(70)}


def test_batches_that_nobody_acknowledges_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_OUTSTANDING", 2)
    found = sent(5)
    found.check_room()
    found.send({"shop": at(6)})
    with pytest.raises(CanalError, match="the oldest is 1"):
        found.check_room()


def test_another_filter_begins_unfinished_windows_anew() -> None:
    inside = Place((5, WINDOW_DONE), Inside(6, 2, 1))
    found = Batches({"shop": inside})
    found.send({"shop": inside})
    found.restart_windows()
    assert (found.sent["shop"], found.acked["shop"]) == (at(5), at(5))
    found.acknowledge(1, 1001)
    assert found.acked["shop"] == at(5)
