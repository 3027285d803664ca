"""A client that starts at a named place asks a relay where that is: messages and instructions."""

from __future__ import annotations

import pytest

from databus.client.machines.connection import ConnectionMachine
from databus.client.machines.connection_messages import (
    ConnectionInstruction,
    Fail,
    GetPosition,
    GetSources,
    GetStream,
    MoveOn,
    PointNotFound,
    PositionAnswered,
    RequestFailed,
    SchemasAnswered,
    ServersTaken,
    SourcesAnswered,
    Started,
    Wait,
    Waited,
)
from databus.client.machines.position import Position
from databus.client.machines.server_set import Servers
from databus.client.machines.states import Connection
from databus.conf.named_places import GtidPlace
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import PlaceNotFoundError, ScnAheadError, ScnNotFoundError
from tests.client.machines.test_connection import (
    ONLY_ORDERS,
    A,
    B,
    make_machine,
    only,
)
from tests.client.shop import ORDERS, ORDERS_ID, registered


def asked(machine: ConnectionMachine, message: object = None) -> list[ConnectionInstruction]:
    machine.handle(message or Started())  # type: ignore[arg-type]
    machine.handle(SourcesAnswered(ONLY_ORDERS))
    return machine.handle(SchemasAnswered(registered(ORDERS)))


@pytest.fixture
def machine() -> ConnectionMachine:
    return make_machine(start="gtid:0-1-17")


def test_a_relay_is_asked_for_the_place_after_the_registration(machine: ConnectionMachine) -> None:
    request = only(asked(machine), GetPosition)
    assert request == GetPosition(A, (ORDERS_ID,), GtidPlace("0-1-17"))
    assert machine.state is Connection.REQUESTING_POSITION


def test_reading_begins_after_the_window_and_the_checkpoint_moves_there(
    machine: ConnectionMachine,
) -> None:
    asked(machine)
    instructions = machine.handle(PositionAnswered(40))
    assert only(instructions, MoveOn).position == Position(Checkpoint.at(40))
    assert only(instructions, GetStream).checkpoint == Checkpoint.at(40)


def test_a_place_is_asked_for_once(machine: ConnectionMachine) -> None:
    asked(machine)
    machine.handle(PositionAnswered(40))
    machine.handle(RequestFailed(ScnAheadError("scn 1", 0)))
    assert only(asked(machine, Waited()), GetStream).checkpoint.window_scn == 40


def test_a_place_in_the_future_is_asked_for_again() -> None:
    machine = make_machine(start="time:2100-01-01")
    asked(machine)
    ahead = RequestFailed(ScnAheadError("time:2100-01-01T00:00:00Z", 60))
    assert only(machine.handle(ahead), Wait).seconds > 0
    assert only(asked(machine, Waited()), GetPosition)


@pytest.mark.parametrize("bootstraps", [(), ("http://bootstrap",)])
def test_a_place_that_every_relay_has_evicted_is_an_error_not_a_bootstrap(
    bootstraps: tuple[str, ...],
) -> None:
    machine = make_machine(A, B, start="gtid:0-1-17", bootstraps=bootstraps)
    asked(machine)
    assert only(machine.handle(PointNotFound(ScnNotFoundError(-1, 30))), Wait)
    asked(machine, Waited())
    error = only(machine.handle(PointNotFound(ScnNotFoundError(-1, 20))), Fail).error
    assert isinstance(error, PlaceNotFoundError)
    assert "start = gtid:0-1-17" in str(error)
    assert "the oldest window held is 20" in str(error)


def test_a_transaction_that_no_relay_knows_is_an_error() -> None:
    machine = make_machine(A, B, start="gtid:0-1-17")
    unknown = RequestFailed(PlaceNotFoundError("no window that is held has GTID 0-1-17"))
    asked(machine)
    assert only(machine.handle(unknown), Wait)
    asked(machine, Waited())
    assert only(machine.handle(unknown), Fail).error is unknown.error


def test_other_servers_are_asked_instead_when_the_set_changes(machine: ConnectionMachine) -> None:
    asked(machine)
    assert only(machine.handle(ServersTaken(Servers((B,)))), GetSources).server == B
