"""The tables of states, and the lifecycle and server set machines over them."""

from __future__ import annotations

from enum import StrEnum

import pytest

from databus.client.machines.lifecycle import (
    HoldCallbacks,
    LifecycleMachine,
    Pause,
    ReleaseCallbacks,
    ReportError,
    Resume,
    Retry,
    ShutDown,
    Start,
    StartReading,
    StopReading,
    Suspend,
)
from databus.client.machines.server_set import (
    AddRelay,
    BeginRequest,
    EndRequest,
    RemoveRelay,
    ReplaceServers,
    Servers,
    ServerSetMachine,
    TakeServers,
)
from databus.client.machines.states import (
    CONNECTION,
    LIFECYCLE,
    SERVER_SET,
    Connection,
    Lifecycle,
    ServerSet,
    StateMachine,
    Transition,
)
from databus.schemas.errors import IllegalTransitionError

A, B = "http://a", "http://b"


def test_every_state_can_be_reached_from_the_initial_one() -> None:
    machines: tuple[tuple[StrEnum, tuple[Transition, ...]], ...] = (
        (Lifecycle.INITIAL, LIFECYCLE),
        (ServerSet.IDLE, SERVER_SET),
        (Connection.INITIAL, CONNECTION),
    )
    for initial, table in machines:
        reached: set[StrEnum] = {initial}
        for _ in table:
            reached |= {t.target for t in table if reached & set(t.sources)}
        assert reached == set(type(initial))


def test_no_state_has_two_ways_out_for_one_trigger() -> None:
    for table in (LIFECYCLE, SERVER_SET, CONNECTION):
        steps = [(source, t.trigger) for t in table for source in t.sources]
        assert len(steps) == len(set(steps))


@pytest.mark.parametrize(
    "steps",
    [
        # Linear: every snapshot, one catch-up of two pages.
        "read_snapshot read_snapshot ask_target_scn read_catch_up read_catch_up caught_up",
        # Classic: a catch-up after each snapshot; the last target needed none.
        "read_snapshot ask_target_scn read_catch_up read_snapshot ask_target_scn caught_up",
    ],
)
def test_the_whole_conversation_of_the_protocol_is_in_the_connection_table(steps: str) -> None:
    machine = StateMachine(Connection.INITIAL, CONNECTION)
    before = (
        "start picked sources_known registered streamed scn_not_found gone_everywhere picked "
        "ask_start_scn"
    )
    for step in f"{before} {steps} picked".split():
        machine.fire(step)
    assert machine.state is Connection.REQUESTING_SOURCES


@pytest.mark.parametrize(
    "step", ["ask_start_scn", "read_snapshot", "ask_target_scn", "read_catch_up", "caught_up"]
)
def test_a_bootstrap_may_be_resumed_at_any_step(step: str) -> None:
    machine = StateMachine(Connection.INITIAL, CONNECTION)
    before = "start picked sources_known resume_bootstrap picked"
    for each in (*before.split(), step):
        machine.fire(each)


def test_a_step_that_a_state_has_not_is_an_error_and_changes_nothing() -> None:
    machine = StateMachine(Connection.INITIAL, CONNECTION)
    assert machine.may("start")
    assert not machine.may("registered")
    with pytest.raises(IllegalTransitionError, match="state initial has no step registered"):
        machine.fire("registered")
    assert machine.state is Connection.INITIAL


def test_a_client_runs_pauses_resumes_and_shuts_down() -> None:
    machine = LifecycleMachine()
    assert machine.handle(Start()) == [StartReading()]
    assert machine.handle(Pause()) == [HoldCallbacks()]
    assert machine.handle(Resume()) == [ReleaseCallbacks()]
    assert machine.handle(ShutDown()) == [StopReading()]
    assert machine.state is Lifecycle.SHUT_DOWN


def test_a_message_out_of_place_asks_for_nothing() -> None:
    machine = LifecycleMachine()
    assert machine.handle(Pause()) == []
    machine.handle(Start())
    assert machine.handle(Start()) == []
    assert machine.handle(Resume()) == []
    machine.handle(ShutDown())
    assert machine.handle(Resume()) == []


def test_an_error_holds_the_callbacks_and_is_forgotten_on_resume() -> None:
    machine, error = LifecycleMachine(), ValueError("full")
    machine.handle(Start())
    assert machine.handle(Suspend(error)) == [HoldCallbacks(), ReportError(error)]
    assert machine.error is error
    assert machine.handle(Suspend(ValueError("another"))) == []
    assert machine.handle(Resume()) == [Retry(), ReleaseCallbacks()]
    assert machine.error is None


def test_a_client_that_never_started_has_nothing_to_stop() -> None:
    assert LifecycleMachine().handle(ShutDown()) == []


def test_a_change_of_servers_between_requests_takes_effect_at_once() -> None:
    machine = ServerSetMachine(Servers((A,)))
    assert machine.handle(AddRelay(B)) == [TakeServers(Servers((A, B)), False)]
    assert machine.handle(RemoveRelay(A)) == [TakeServers(Servers((B,)), False)]


def test_a_change_of_servers_during_a_request_takes_effect_when_it_ends() -> None:
    machine = ServerSetMachine(Servers((A,)))
    machine.handle(BeginRequest())
    assert machine.handle(ReplaceServers(Servers((B,)), must_pick_again=True)) == []
    assert machine.state is ServerSet.CHANGED
    assert machine.handle(EndRequest()) == [TakeServers(Servers((B,)), True)]
    machine.handle(BeginRequest())
    assert machine.handle(EndRequest()) == []


def test_a_change_that_changes_nothing_is_none() -> None:
    machine = ServerSetMachine(Servers((A,)))
    assert machine.handle(AddRelay(A)) == []
    assert machine.handle(RemoveRelay(B)) == []
    assert machine.handle(ReplaceServers(Servers((A,)))) == []
