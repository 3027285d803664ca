"""Who is being served, with a clock that stands still until it is told."""

from __future__ import annotations

import pytest

from databus.bootstrap.server.sessions import Caller, ServedPhase, Sessions, caller_of
from databus.schemas.errors import BootstrapTooOldError
from tests.client.shop import FakeClock

ANN, BEN = Caller("ann", "10.0.0.1", "databus/1"), Caller("ben", "10.0.0.2", "databus/1")


def test_a_client_is_known_by_its_id_or_by_address_and_program() -> None:
    assert caller_of("3f9a", "10.0.0.1", "databus/1").id == "3f9a"
    assert caller_of("", "10.0.0.1", "curl/8").id == "10.0.0.1 curl/8"
    assert caller_of("bad id\n", "10.0.0.1", "").id == "10.0.0.1"
    assert len(caller_of("", "10.0.0.1", "x" * 10_000).id) <= 200


def test_each_set_of_sources_of_a_client_is_a_session_the_last_one_first() -> None:
    clock = FakeClock()
    sessions = Sessions(clock)
    for caller, sources in ((ANN, ["1"]), (BEN, ["1"]), (ANN, ["2"]), (ANN, ["1"])):
        clock.now_s += 1
        with sessions.asking(caller, sources) as session:
            session.rows += 10
    found = [(s.caller.id, s.sources, s.rows) for s in sessions.look()]
    assert found == [("ann", ("1",), 20), ("ann", ("2",), 10), ("ben", ("1",), 10)]
    first = sessions.look()[0]
    assert (first.first_seen_s, first.last_seen_s) == (101, 104)


def test_a_refusal_is_kept_until_a_request_is_answered() -> None:
    sessions = Sessions(FakeClock())
    with pytest.raises(BootstrapTooOldError), sessions.asking(ANN, ["1"]):
        raise BootstrapTooOldError("not yet")
    (session,) = sessions.look()
    assert (session.problem, session.phase) == ("not yet", ServedPhase.STARTING)
    with sessions.asking(ANN, ["1"]):
        pass
    assert session.problem == ""


def test_one_whose_target_is_its_start_is_finished_without_a_catch_up() -> None:
    sessions = Sessions(FakeClock())
    for caller in (ANN, BEN):
        with sessions.asking(caller, ["orders", "people"]) as session:
            session.phase, session.start_scn = ServedPhase.SNAPSHOT, 7
    sessions.set_target(ANN, "people", 7)
    sessions.set_target(BEN, "people", 8)
    found = {s.caller.id: (s.phase, s.target_scn) for s in sessions.look()}
    assert found == {"ann": (ServedPhase.FINISHED, 7), "ben": (ServedPhase.SNAPSHOT, 8)}


def test_sessions_are_forgotten_after_a_while_and_there_are_never_more_than_so_many() -> None:
    clock = FakeClock()
    sessions = Sessions(clock, most=3, forget_s=60)
    for number in range(10):
        with sessions.asking(Caller(str(number), "a", ""), ["1"]):
            pass
    assert {s.caller.id for s in sessions.look()} == {"9", "8", "7"}
    clock.now_s += 61
    assert sessions.look() == []
