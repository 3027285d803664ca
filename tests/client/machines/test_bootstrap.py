"""The bootstrap half of the connection machine: messages in, instructions out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from databus.client.machines.bootstrap import MOST_BEGINNINGS, STICKY_TRIES
from databus.client.machines.connection import ConnectionMachine
from databus.client.machines.connection_messages import (
    BeginBootstrap,
    ConnectionInstruction,
    Disconnect,
    EndBootstrap,
    Fail,
    GetPage,
    GetSchemas,
    GetSources,
    GetStartScn,
    GetStream,
    GetTargetScn,
    HandOverPage,
    KeepCheckpoint,
    PageAnswered,
    PageFacts,
    PointNotFound,
    ReportProblem,
    RequestFailed,
    SchemasAnswered,
    SchemaUnknown,
    ServersTaken,
    SourcesAnswered,
    Started,
    StartScnAnswered,
    TargetScnAnswered,
    UseBindings,
    Wait,
    Waited,
    WindowTooLarge,
)
from databus.client.machines.position import Position
from databus.client.machines.server_set import Servers
from databus.client.machines.states import Connection
from databus.client.responses import PageHeaders
from databus.client.subscription import Subscription
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode
from databus.schemas.errors import (
    BootstrapTooOldError,
    BootstrapTooYoungError,
    CheckpointError,
    IllegalTransitionError,
    OtherLogError,
    RequestError,
    SchemaNotFoundError,
    ScnNotFoundError,
    ServerError,
    UnknownCommandError,
    WindowTooLargeError,
)
from databus.schemas.filters import ModFilter
from tests.client.machines.test_connection import BOTH, make_machine, only
from tests.client.shop import CUSTOMERS, CUSTOMERS_ID, ORDERS, ORDERS_ID, registered

A, B = "http://a", "http://b"
X, Y = "http://x:1", "http://y:2"
SOURCES = ("shop.orders", "shop.customers")
SCHEMAS = registered(ORDERS, CUSTOMERS)
TOO_OLD = (BootstrapTooOldError, "shop.orders is being seeded")
TOO_YOUNG = (BootstrapTooYoungError, "deleted rows are known from 9 on")


def at_start_scn(
    *bootstraps: str, start: str = "3", **options: Any
) -> tuple[ConnectionMachine, GetStartScn]:
    """Return a machine that asks for the start SCN, and what it asks."""
    subscription = Subscription(SOURCES, filters=options.pop("filters", {}))
    machine = make_machine(
        start=start, subscription=subscription, bootstraps=bootstraps or (X,), **options
    )
    for message in (Started(), SourcesAnswered(BOTH), SchemasAnswered(SCHEMAS)):
        machine.handle(message)
    machine.handle(PointNotFound(ScnNotFoundError(3, 100)))
    only(machine.handle(Waited()), GetSchemas)
    return machine, only(machine.handle(SchemasAnswered(SCHEMAS)), GetStartScn)


def at_snapshot(*bootstraps: str, **options: Any) -> tuple[ConnectionMachine, GetPage]:
    """Return a machine that asks for the first page, start SCN 10, and what it asks."""
    machine, _ = at_start_scn(*bootstraps, **options)
    return machine, only(machine.handle(StartScnAnswered(10, "one")), GetPage)


def page(asked: GetPage, to: int = -1, scn: int = -1, offset: int = -1) -> PageAnswered:
    """Return the answer whose page leads to row `to`, or in a catch-up to window `scn`."""
    is_over = to == scn == -1
    answered = Checkpoint(
        asked.checkpoint.mode, scn, offset, snapshot_offset=to, snapshot_source=""
    )
    return PageAnswered(PageFacts(answered, 5, 1000), PageHeaders(is_over))


def failed(text: str, server: str = X) -> RequestFailed:
    return RequestFailed(ServerError(server, text))


def refused(refusal: tuple[type[RequestError], str], server: str = X) -> RequestFailed:
    kind, text = refusal
    return RequestFailed(kind.answered(server, text))


def kinds(instructions: Sequence[ConnectionInstruction]) -> list[str]:
    return [type(instruction).__name__ for instruction in instructions]


def test_linear_order_reads_the_snapshot_of_every_source_first() -> None:
    machine, asked = at_start_scn(filters={"shop.orders": ModFilter(4, 0, 2)})
    assert (asked.server, asked.sources) == (X, SOURCES)
    assert asked.checkpoint == Checkpoint(
        ConsumptionMode.SNAPSHOT, bootstrap_since_scn=3, extra={"bootstrap_order": "linear"}
    )

    kept, first = machine.handle(StartScnAnswered(10, "one"))
    assert isinstance(first, GetPage)
    assert isinstance(kept, KeepCheckpoint)
    assert (kept.checkpoint, kept.since_scn) == (first.checkpoint, 10)
    assert (first.src_ids, first.filters is None) == ((ORDERS_ID,), False)
    assert (first.checkpoint.snapshot_source, first.checkpoint.snapshot_offset) == (SOURCES[0], 0)
    assert first.checkpoint.server_info == "x:1"
    assert first.checkpoint.extra["bootstrap_store_id"] == "one"

    handed, second = machine.handle(page(first, to=70))
    assert isinstance(second, GetPage)
    assert handed == HandOverPage(second.checkpoint, 10)
    assert second.checkpoint.snapshot_offset == 70

    handed, kept, third = machine.handle(page(second))
    assert isinstance(third, GetPage)
    assert isinstance(handed, HandOverPage)
    assert handed.checkpoint.is_snapshot_done
    assert (third.src_ids, third.filters) == ((CUSTOMERS_ID,), None)
    assert third.checkpoint.snapshot_source == SOURCES[1]

    assert machine.handle(page(third))[-1] == GetTargetScn(X, SOURCES[1])


def test_linear_order_catches_up_all_sources_at_once_and_goes_back_to_a_relay() -> None:
    machine, first = at_snapshot()
    machine.handle(page(only(machine.handle(page(first)), GetPage)))
    kept, log = machine.handle(TargetScnAnswered(20))
    assert isinstance(log, GetPage)
    assert kept == KeepCheckpoint(log.checkpoint, 10)
    assert (log.checkpoint.window_scn, log.src_ids) == (10, (ORDERS_ID, CUSTOMERS_ID))

    handed, log = machine.handle(page(log, scn=15, offset=2))
    assert isinstance(log, GetPage)
    assert handed == HandOverPage(log.checkpoint, 10)
    assert (log.checkpoint.window_scn, log.checkpoint.window_offset) == (15, 2)
    assert machine.state is Connection.CATCHUP

    handed, end, _, sources = machine.handle(page(log))
    assert isinstance(handed, HandOverPage)
    assert (handed.checkpoint.is_caught_up, handed.since_scn) == (True, 15)
    assert end == EndBootstrap(Checkpoint.at(20, 1000))
    assert sources == GetSources(A)
    assert machine.position == Position(Checkpoint.at(20, 1000))

    machine.handle(SourcesAnswered(BOTH))
    stream = only(machine.handle(SchemasAnswered(SCHEMAS)), GetStream)
    assert stream.checkpoint == Checkpoint.at(20, 1000)


def test_the_classic_conversation() -> None:
    machine, asked = at_snapshot(bootstrap_order="classic")
    log = []
    only(machine.handle(page(asked)), GetTargetScn)
    log.append(only(machine.handle(TargetScnAnswered(20)), GetPage))
    second = only(machine.handle(page(log[-1])), GetPage)
    assert (second.checkpoint.snapshot_source, second.checkpoint.bootstrap_target_scn) == (
        SOURCES[1],
        -1,
    )
    assert only(machine.handle(page(second)), GetTargetScn) == GetTargetScn(X, SOURCES[1])
    log.append(only(machine.handle(TargetScnAnswered(30)), GetPage))
    log.append(only(machine.handle(page(log[-1])), GetPage))
    end = only(machine.handle(page(log[-1])), EndBootstrap)
    # From the start SCN; then from the target before, the second source from the start SCN.
    assert [(p.src_ids, p.checkpoint.window_scn) for p in log] == [
        ((ORDERS_ID,), 10),
        ((ORDERS_ID,), 20),
        ((CUSTOMERS_ID,), 10),
    ]
    assert end.checkpoint == Checkpoint.at(30, 1000)


def test_nothing_to_catch_up_is_not_asked_for() -> None:
    machine, first = at_snapshot()
    second = only(machine.handle(page(first)), GetPage)
    machine.handle(page(second))
    assert only(machine.handle(TargetScnAnswered(10)), EndBootstrap)


@pytest.mark.parametrize("order", ["linear", "classic"])
def test_a_restart_at_any_step_asks_for_what_would_have_come_next(order: str) -> None:
    machine, asked = at_start_scn(bootstrap_order=order)
    message: Any = StartScnAnswered(10, "one")
    request: Any = asked
    seen = []
    for _ in range(30):
        seen.append((machine.position, request))
        request = machine.handle(message)[-1]
        if isinstance(request, GetSources):
            break
        targets = sum(isinstance(r, GetTargetScn) for _, r in seen)
        if isinstance(request, GetTargetScn):
            message = TargetScnAnswered(20 + 10 * targets)
        else:
            at = request.checkpoint
            if at.mode is ConsumptionMode.SNAPSHOT:
                message = page(request, to=7) if at.snapshot_offset == 0 else page(request)
            else:
                is_begun = at.window_scn not in (10, 20)
                message = page(request) if is_begun else page(request, scn=at.window_scn + 1)
    assert len(seen) == (8 if order == "linear" else 13)
    for position, expected in seen[1:]:
        # The order is that of the checkpoint, whatever the settings say by now.
        again = make_machine(subscription=Subscription(SOURCES), bootstraps=(X,))
        again.position = position
        for each in (Started(), SourcesAnswered(BOTH)):
            again.handle(each)
        begun, picked = again.handle(SchemasAnswered(SCHEMAS))[-2:]
        assert begun == BeginBootstrap(position.checkpoint)
        assert picked == GetSchemas(X, (ORDERS_ID, CUSTOMERS_ID))
        assert again.handle(SchemasAnswered(SCHEMAS))[-1] == expected


def checkpoint_in_catch_up(of: str) -> Checkpoint:
    """Return one whose snapshots are those of SOURCES, and whose catch-up is of `of`."""
    begun = Checkpoint.at(3).start_bootstrap().with_extra(bootstrap_order="linear")
    read = begun.with_start_scn(5).start_snapshot(SOURCES[1], 1).end_snapshot()
    return read.with_target_scn(20).start_catch_up(of, 1)


def test_a_catch_up_of_the_sources_asked_for_goes_on() -> None:
    machine = make_machine(subscription=Subscription(SOURCES), bootstraps=(X,))
    machine.position = Position(checkpoint_in_catch_up(SOURCES[1]))
    for each in (Started(), SourcesAnswered(BOTH)):
        machine.handle(each)
    assert only(machine.handle(SchemasAnswered(SCHEMAS)), GetSchemas).server == X


def test_a_row_too_large_for_this_client_ends_a_bootstrap_with_what_to_do() -> None:
    machine, _ = at_snapshot()
    error = WindowTooLargeError(9, 5)
    assert only(machine.handle(WindowTooLarge(error)), Fail).error is error


def test_who_looks_is_told_of_the_bootstrap_server_while_that_is_read() -> None:
    machine, asked = at_snapshot(X)
    assert machine.server == asked.server == X


def test_failures_are_counted_from_one_page_to_the_next() -> None:
    machine, asked = at_snapshot(X, Y)
    for row in range(1, 2 * STICKY_TRIES):
        machine.handle(failed("down", asked.server))
        assert only(machine.handle(Waited()), GetSchemas).server == asked.server
        asked = only(machine.handle(SchemasAnswered(SCHEMAS)), GetPage)
        asked = only(machine.handle(page(asked, to=row)), GetPage)
    assert asked.checkpoint.snapshot_offset == 2 * STICKY_TRIES - 1


def test_failures_at_the_target_do_not_count_at_the_next_snapshot() -> None:
    machine, asked = at_snapshot(X, Y, bootstrap_order="classic")
    holder = asked.server
    only(machine.handle(page(asked)), GetTargetScn)
    for _ in range(STICKY_TRIES - 1):
        machine.handle(failed("down", holder))
        assert only(machine.handle(Waited()), GetSchemas).server == holder
        only(machine.handle(SchemasAnswered(SCHEMAS)), GetTargetScn)
    asked = only(machine.handle(TargetScnAnswered(10)), GetPage)
    assert asked.checkpoint.snapshot_source == SOURCES[1]
    machine.handle(failed("down", holder))
    assert only(machine.handle(Waited()), GetSchemas).server == holder


def test_failures_before_the_start_scn_do_not_count_at_the_snapshot_nor_are_more_allowed() -> None:
    for failures in (0, STICKY_TRIES - 1):
        machine, asked = at_start_scn(X, Y)
        holder = asked.server
        for _ in range(failures):
            machine.handle(failed("down", holder))
            holder = only(machine.handle(Waited()), GetSchemas).server
            only(machine.handle(SchemasAnswered(SCHEMAS)), GetStartScn)
        only(machine.handle(StartScnAnswered(10, "one")), GetPage)
        asked_of = []
        for _ in range(STICKY_TRIES):
            machine.handle(failed("down", holder))
            asked_of.append(only(machine.handle(Waited()), GetSchemas).server)
            machine.handle(SchemasAnswered(SCHEMAS))
        assert asked_of[:-1] == [holder] * (STICKY_TRIES - 1)
        assert asked_of[-1] != holder


def until_another_is_asked(machine: ConnectionMachine, answer: Any) -> int:
    """Return how often a server answers so before another one is asked."""
    first, tries = machine.server, 0
    while machine.server == first:
        tries += 1
        assert tries < 10
        only(machine.handle(answer), Wait)
        only(machine.handle(Waited()), GetSchemas)
        machine.handle(SchemasAnswered(SCHEMAS))
    return tries


def nothing_on(machine: ConnectionMachine) -> PageAnswered:
    """Return a page that does not advance a machine's checkpoint."""
    return PageAnswered(PageFacts(machine.position.checkpoint, 1, -1), PageHeaders(False))


@pytest.mark.parametrize("is_answered", [False, True])
@pytest.mark.parametrize("after", ["start", "page", "target", "bootstrap"])
def test_a_server_has_all_its_tries_again_after_each_success(after: str, is_answered: bool) -> None:
    machine, asked = at_snapshot(X, Y, bootstrap_order="classic")
    for _ in range(STICKY_TRIES - 1 if after != "start" else 0):
        machine.handle(failed("down", asked.server))
        machine.handle(Waited())
        machine.handle(SchemasAnswered(SCHEMAS))
    if after != "start":
        asked = only(machine.handle(page(asked, to=7)), GetPage)
    if after == "target":
        only(machine.handle(page(asked)), GetTargetScn)
        asked = only(machine.handle(TargetScnAnswered(10)), GetPage)
    if after == "bootstrap":
        begin_another(machine, asked)
    answer = nothing_on(machine) if is_answered else failed("down", asked.server)
    assert until_another_is_asked(machine, answer) == STICKY_TRIES


def begin_another(machine: ConnectionMachine, asked: GetPage) -> None:
    """End a bootstrap, and begin the next one with its first page."""
    only(machine.handle(page(asked)), GetTargetScn)
    asked = only(machine.handle(TargetScnAnswered(10)), GetPage)
    only(machine.handle(page(asked)), GetTargetScn)
    only(machine.handle(TargetScnAnswered(10)), EndBootstrap)
    for message in (SourcesAnswered(BOTH), SchemasAnswered(SCHEMAS)):
        machine.handle(message)
    machine.handle(PointNotFound(ScnNotFoundError(10, 100)))
    machine.handle(Waited())
    only(machine.handle(SchemasAnswered(SCHEMAS)), GetStartScn)
    only(machine.handle(StartScnAnswered(20, "one")), GetPage)


def test_each_bootstrap_may_begin_anew_as_often_as_the_first() -> None:
    machine, asked = at_snapshot(bootstrap_order="classic")
    for is_last in (False, True):
        for _ in range(MOST_BEGINNINGS - 1):
            only(machine.handle(refused(TOO_YOUNG)), BeginBootstrap)
            machine.handle(Waited())
            machine.handle(SchemasAnswered(SCHEMAS))
            asked = only(machine.handle(StartScnAnswered(10, "one")), GetPage)
        if not is_last:
            begin_another(machine, asked)
    assert only(machine.handle(refused(TOO_YOUNG)), Fail)
    assert machine.state is Connection.CLOSED
    assert machine.handle(ServersTaken(Servers((A,), (Y,)))) == []
    with pytest.raises(IllegalTransitionError, match="state closed has no step start"):
        machine.handle(Started())


def test_waits_between_tries_are_short_again_after_a_page_with_rows() -> None:
    machine, asked = at_snapshot()
    waits = []
    for is_after_a_page in (False, False, True):
        if is_after_a_page:
            asked = only(machine.handle(page(asked, to=7)), GetPage)
        waits.append(only(machine.handle(failed("down")), Wait).seconds)
        machine.handle(Waited())
        asked = only(machine.handle(SchemasAnswered(SCHEMAS)), GetPage)
    assert waits[0] < waits[1]
    assert waits[2] < waits[1]


def test_a_checkpoint_of_other_sources_is_refused() -> None:
    checkpoint = Checkpoint.at(3).start_bootstrap().with_extra(bootstrap_order="linear")
    checkpoint = checkpoint.with_start_scn(5).start_snapshot("shop.others", 0)
    catching_up = checkpoint_in_catch_up("shop.others")
    without_start = replace(checkpoint_in_catch_up(SOURCES[1]), bootstrap_start_scn=-1)
    not_begun = Checkpoint.at(3).start_bootstrap()
    for damaged in (checkpoint, catching_up, without_start, not_begun):
        machine = make_machine(subscription=Subscription(SOURCES), bootstraps=(X,))
        machine.position = Position(damaged)
        for each in (Started(), SourcesAnswered(BOTH)):
            machine.handle(each)
        error = only(machine.handle(SchemasAnswered(SCHEMAS)), Fail).error
        assert isinstance(error, CheckpointError)


def test_a_server_that_is_not_as_far_is_asked_again_later_and_that_is_no_failure() -> None:
    machine, _ = at_start_scn()
    for _ in range(20):
        assert kinds(machine.handle(refused(TOO_OLD))) == ["Disconnect", "Wait"]
        machine.handle(Waited())
        only(machine.handle(SchemasAnswered(SCHEMAS)), GetStartScn)
    only(machine.handle(StartScnAnswered(10)), GetPage)


def test_a_server_behind_the_consumer_is_not_believed() -> None:
    machine, _ = at_start_scn()
    instructions = machine.handle(StartScnAnswered(2))
    assert "starts at scn 2, before ours, 3" in str(only(instructions, ReportProblem).error)
    machine, first = at_snapshot()
    machine.handle(page(only(machine.handle(page(first)), GetPage)))
    assert only(machine.handle(TargetScnAnswered(9)), ReportProblem)
    # The snapshots stay read.
    machine.handle(Waited())
    assert only(machine.handle(SchemasAnswered(SCHEMAS)), GetTargetScn)


def test_a_start_scn_that_its_own_server_has_not_come_to_begins_the_bootstrap_anew() -> None:
    machine, _ = at_start_scn()
    for _ in range(2 * MOST_BEGINNINGS):  # it is no reason to give up
        only(machine.handle(StartScnAnswered(1 << 62)), GetPage)
        instructions = machine.handle(refused(TOO_OLD))
        assert kinds(instructions) == ["ReportProblem", "BeginBootstrap", "Disconnect", "Wait"]
        machine.handle(Waited())
        only(machine.handle(SchemasAnswered(SCHEMAS)), GetStartScn)
    only(machine.handle(StartScnAnswered(10)), GetPage)
    assert machine.position.checkpoint.bootstrap_start_scn == 10


def test_a_target_scn_that_its_own_server_has_not_come_to_begins_the_bootstrap_anew() -> None:
    machine, first = at_snapshot(X, Y)
    machine.handle(page(only(machine.handle(page(first)), GetPage)))
    asked = only(machine.handle(TargetScnAnswered(1 << 62)), GetPage)
    begun = only(machine.handle(refused(TOO_OLD, asked.server)), BeginBootstrap).checkpoint
    assert (begun.bootstrap_since_scn, begun.bootstrap_target_scn) == (3, -1)


def test_a_target_scn_that_another_server_has_not_come_to_is_waited_for() -> None:
    machine, first = at_snapshot(X, Y)
    machine.handle(page(only(machine.handle(page(first)), GetPage)))
    asked = only(machine.handle(TargetScnAnswered(20)), GetPage)
    machine.handle(failed("down", asked.server))
    assert only(machine.handle(Waited()), GetSchemas).server != asked.server
    only(machine.handle(SchemasAnswered(SCHEMAS)), GetPage)
    assert kinds(machine.handle(refused(TOO_OLD))) == ["Disconnect", "Wait"]
    assert machine.position.checkpoint.bootstrap_target_scn == 20


def test_every_server_is_asked_before_too_young_is_the_end() -> None:
    machine, asked = at_start_scn(X, Y)
    assert kinds(machine.handle(refused(TOO_YOUNG))) == ["Disconnect", "Wait"]
    assert only(machine.handle(Waited()), GetSchemas).server != asked.server
    machine.handle(SchemasAnswered(SCHEMAS))
    error = only(machine.handle(refused(TOO_YOUNG)), Fail).error
    assert "deleted rows are known from 9 on" in str(error)


def test_every_server_is_asked_before_another_log_is_the_end() -> None:
    machine, asked = at_start_scn(X, Y)
    refused = RequestFailed(OtherLogError("another log"))
    assert kinds(machine.handle(refused)) == ["Disconnect", "Wait"]
    assert only(machine.handle(Waited()), GetSchemas).server != asked.server
    machine.handle(SchemasAnswered(SCHEMAS))
    assert isinstance(only(machine.handle(refused), Fail).error, OtherLogError)


def test_the_window_that_a_server_names_with_the_target_is_what_relays_are_shown() -> None:
    machine, first = at_snapshot()
    machine.handle(page(only(machine.handle(page(first)), GetPage)))
    _, log = machine.handle(TargetScnAnswered(20, (17, 1017)))
    assert isinstance(log, GetPage)
    machine.handle(page(log))
    assert machine.position.checkpoint.mark == (17, 1017)


def refuse_start(machine: ConnectionMachine) -> None:
    """Let the server in hand be too young for the start SCN, and the next one be asked for it."""
    only(machine.handle(refused(TOO_YOUNG)), Wait)
    only(machine.handle(Waited()), GetSchemas)
    only(machine.handle(SchemasAnswered(SCHEMAS)), GetStartScn)


def test_a_server_that_was_taken_away_is_asked_again_when_it_is_back() -> None:
    machine, asked = at_start_scn(X, Y)
    other = Y if asked.server == X else X
    refuse_start(machine)
    assert machine.handle(ServersTaken(Servers((A,), (other,)))) == []
    assert machine.handle(ServersTaken(Servers((A,), (X, Y)))) == []
    asked_again = [machine.server]
    while not any(isinstance(one, Fail) for one in machine.handle(refused(TOO_YOUNG))):
        only(machine.handle(Waited()), GetSchemas)
        only(machine.handle(SchemasAnswered(SCHEMAS)), GetStartScn)
        asked_again.append(machine.server)
        assert len(asked_again) < 10
    assert set(asked_again) == {X, Y}


def test_who_was_too_young_before_a_start_scn_was_found_is_asked_again_behind_it() -> None:
    machine, first = at_start_scn(X, Y)
    refuse_start(machine)
    found = machine.server
    assert found != first.server
    only(machine.handle(StartScnAnswered(10, "one")), GetPage)
    only(machine.handle(refused(TOO_YOUNG)), BeginBootstrap)
    while True:
        only(machine.handle(Waited()), GetSchemas)
        only(machine.handle(SchemasAnswered(SCHEMAS)), GetStartScn)
        if machine.server == found:
            break
        machine.handle(failed("down", first.server))
    # What the other one said was of another time: it may be set up anew by now.
    refuse_start(machine)
    assert machine.server == first.server
    assert only(machine.handle(refused(TOO_YOUNG)), Fail)


def test_too_young_in_a_bootstrap_begins_it_anew_so_often() -> None:
    machine, _ = at_snapshot()
    for _ in range(MOST_BEGINNINGS - 1):
        instructions = machine.handle(refused(TOO_YOUNG))
        begun = only(instructions, BeginBootstrap).checkpoint
        assert (begun.bootstrap_since_scn, begun.bootstrap_start_scn) == (3, -1)
        assert "bootstrap_store_id" not in begun.extra
        machine.handle(Waited())
        machine.handle(SchemasAnswered(SCHEMAS))
        machine.handle(StartScnAnswered(10, "one"))
    assert only(machine.handle(refused(TOO_YOUNG)), Fail)


def test_a_snapshot_is_asked_of_its_server_several_times_before_another_begins_it_anew() -> None:
    machine, asked = at_snapshot(X, Y)
    machine.handle(page(asked, to=7))
    servers = []
    for _ in range(STICKY_TRIES):
        machine.handle(failed("down"))
        servers.append(only(machine.handle(Waited()), GetSchemas).server)
    (holder,), other = set(servers[:-1]), servers[-1]
    assert holder == asked.server != other
    fresh = only(machine.handle(SchemasAnswered(SCHEMAS)), GetStartScn)
    assert fresh.checkpoint.bootstrap_start_scn == -1
    # Nothing is told before it is sure: the first one may come back.
    assert machine.position.checkpoint.snapshot_offset == 7
    instructions = machine.handle(StartScnAnswered(12, "two"))
    assert kinds(instructions) == ["BeginBootstrap", "KeepCheckpoint", "GetPage"]
    begun = only(instructions, GetPage).checkpoint
    assert (begun.bootstrap_start_scn, begun.snapshot_offset) == (12, 0)
    assert (begun.bootstrap_since_scn, begun.extra["bootstrap_store_id"]) == (3, "two")
    assert begun.seen_scn == 10  # some of its rows may be in the target


def test_a_snapshot_goes_on_when_its_server_is_back_before_another_has_begun_it() -> None:
    machine, asked = at_snapshot(X, Y)
    machine.handle(page(asked, to=7))
    for _ in range(STICKY_TRIES + 1):
        machine.handle(failed("down"))
        picked = only(machine.handle(Waited()), GetSchemas)
    assert picked.server == asked.server
    again = only(machine.handle(SchemasAnswered(SCHEMAS)), GetPage)
    assert again.checkpoint.snapshot_offset == 7


def test_a_catch_up_goes_on_at_the_next_server_at_once() -> None:
    machine, first = at_snapshot(X, Y)
    machine.handle(page(only(machine.handle(page(first)), GetPage)))
    log = only(machine.handle(TargetScnAnswered(20)), GetPage)
    machine.handle(page(log, scn=15))
    machine.handle(failed("down"))
    assert only(machine.handle(Waited()), GetSchemas).server != first.server
    again = only(machine.handle(SchemasAnswered(SCHEMAS)), GetPage)
    assert again.checkpoint.window_scn == 15


def test_a_server_that_knows_no_register_is_read_with_the_relays_schemas() -> None:
    machine, _ = at_start_scn()
    machine.handle(failed("down"))
    machine.handle(Waited())
    instructions = machine.handle(refused((UnknownCommandError, "/register")))
    assert kinds(instructions) == ["UseBindings", "GetStartScn"]
    assert set(only(instructions, UseBindings).bindings) == {ORDERS_ID, CUSTOMERS_ID}


def test_a_schema_is_asked_for_once_more_and_then_the_client_stops() -> None:
    machine, asked = at_snapshot()
    assert kinds(machine.handle(SchemaUnknown(b"?" * 16))) == ["Disconnect", "GetSchemas"]
    assert machine.state is Connection.REGISTERING_AT_BOOTSTRAP
    assert machine.handle(SchemasAnswered(SCHEMAS))[-1] == asked
    error = only(machine.handle(SchemaUnknown(b"?" * 16)), Fail).error
    assert isinstance(error, SchemaNotFoundError)
    assert X in str(error)


@pytest.mark.parametrize(
    "answer",
    [
        Checkpoint(ConsumptionMode.SNAPSHOT, snapshot_offset=0),  # no further
        Checkpoint(ConsumptionMode.SNAPSHOT),  # a missing key is no end of the snapshot
        Checkpoint(ConsumptionMode.SNAPSHOT, snapshot_offset=9, snapshot_source="shop.customers"),
    ],
)
def test_a_page_that_does_not_lead_on_is_not_handed_over(answer: Checkpoint) -> None:
    machine, asked = at_snapshot()
    instructions = machine.handle(PageAnswered(PageFacts(answer, 5, 1)))
    assert kinds(instructions) == ["ReportProblem", "Disconnect", "Wait"]
    machine.handle(Waited())
    assert machine.handle(SchemasAnswered(SCHEMAS))[-1] == asked


def test_log_rows_beyond_the_target_or_twice_are_not_handed_over() -> None:
    for scn in (21, 10, 9):
        machine, first = at_snapshot()
        machine.handle(page(only(machine.handle(page(first)), GetPage)))
        log = only(machine.handle(TargetScnAnswered(20)), GetPage)
        assert kinds(machine.handle(page(log, scn=scn))) == ["ReportProblem", "Disconnect", "Wait"]


def test_a_page_of_nothing_is_an_error_and_one_too_large_asks_for_more() -> None:
    machine, _ = at_snapshot(fetch_bytes=2048)
    again = only(machine.handle(PageAnswered(None, PageHeaders(False, 9000))), GetPage)
    assert again.size_bytes == 9000
    assert only(machine.handle(page(again, to=5)), GetPage).size_bytes == 2048
    assert only(machine.handle(PageAnswered()), ReportProblem)


def test_a_row_that_is_twice_said_to_be_larger_than_a_window_may_be_ends_a_bootstrap() -> None:
    machine, _ = at_snapshot(fetch_bytes=2048, max_window_bytes=8192)
    too_large = PageAnswered(None, PageHeaders(False, 9000))
    only(machine.handle(too_large), ReportProblem)
    only(machine.handle(Waited()), GetSchemas)
    only(machine.handle(SchemasAnswered(SCHEMAS)), GetPage)
    error = only(machine.handle(too_large), Fail).error
    assert "max_window_bytes = 8192" in str(error)


def test_new_servers_in_a_bootstrap_take_effect_when_the_present_one_goes() -> None:
    machine, _ = at_snapshot(X)
    assert machine.handle(ServersTaken(Servers((A,), (X, Y)))) == []
    instructions = machine.handle(ServersTaken(Servers((A,), (Y,))))
    assert instructions == [Disconnect(), GetSchemas(Y, (ORDERS_ID, CUSTOMERS_ID))]
    assert machine.handle(ServersTaken(Servers((A,), ()))) == [Disconnect(), Wait(2.0)]


def test_new_bootstrap_servers_change_nothing_for_a_client_that_streams() -> None:
    machine = make_machine(subscription=Subscription(SOURCES), bootstraps=(X,))
    for message in (Started(), SourcesAnswered(BOTH), SchemasAnswered(SCHEMAS)):
        machine.handle(message)
    assert machine.handle(ServersTaken(Servers((A,), (Y,)))) == []
    assert machine.state is Connection.STREAMING


def test_behind_a_bootstrap_every_relay_is_asked_again_before_the_next() -> None:
    subscription = Subscription(SOURCES[:1])
    machine = make_machine(A, B, start="3", subscription=subscription, bootstraps=(X,))
    first: list[Any] = [Started()]
    for _ in range(2):
        for server in (1, 2):
            for each in (*first, SourcesAnswered(BOTH), SchemasAnswered(SCHEMAS)):
                machine.handle(each)
            instructions = machine.handle(PointNotFound(ScnNotFoundError(3, 100)))
            begun = [one for one in instructions if isinstance(one, BeginBootstrap)]
            assert len(begun) == (server == 2)
            first = [Waited()]
        machine.handle(Waited())
        only(machine.handle(SchemasAnswered(SCHEMAS)), GetStartScn)
        asked = only(machine.handle(StartScnAnswered(10, "one")), GetPage)
        only(machine.handle(page(asked)), GetTargetScn)
        only(machine.handle(TargetScnAnswered(10)), GetSources)
        first = []  # who is asked for its sources already


def test_bootstraps_that_bring_nothing_are_not_begun_in_haste() -> None:
    machine, _ = at_start_scn()
    waits = []
    for _ in range(4):
        empty = PageAnswered(
            PageFacts(Checkpoint(ConsumptionMode.SNAPSHOT), 0, -1), PageHeaders(True)
        )
        for message in (StartScnAnswered(3), empty, empty, TargetScnAnswered(3)):
            machine.handle(message)
        machine.handle(SourcesAnswered(BOTH))
        machine.handle(SchemasAnswered(SCHEMAS))
        gone = machine.handle(PointNotFound(ScnNotFoundError(3, 100)))
        waits.append(only(gone, Wait).seconds)
        machine.handle(Waited())
        machine.handle(SchemasAnswered(SCHEMAS))
    assert waits == sorted(set(waits)), "they grow"


def test_a_server_that_ended_a_catch_up_for_another_begins_the_next_snapshot_anew() -> None:
    machine, asked = at_snapshot(X, Y, bootstrap_order="classic")
    holder = asked.server
    only(machine.handle(page(asked)), GetTargetScn)
    log = only(machine.handle(TargetScnAnswered(20)), GetPage)
    server = holder
    while server == holder:
        machine.handle(failed("down", server))
        server = only(machine.handle(Waited()), GetSchemas).server
        log = only(machine.handle(SchemasAnswered(SCHEMAS)), GetPage)
    fresh = only(machine.handle(page(log)), GetStartScn)
    assert (fresh.server, machine.state) == (server, Connection.REQUESTING_START_SCN)
    asked = only(machine.handle(StartScnAnswered(12, "two")), GetPage)
    assert (asked.server, asked.checkpoint.snapshot_source) == (server, SOURCES[0])


def test_one_server_by_two_urls_is_one_server() -> None:
    machine, asked = at_snapshot(X, f"{X}/")
    assert only(machine.handle(page(asked, to=7)), GetPage).checkpoint.snapshot_offset == 7


def test_a_checkpoint_that_cannot_be_gone_on_from_is_still_where_it_was() -> None:
    machine = make_machine(subscription=Subscription(SOURCES), bootstraps=(X,))
    position = Position(checkpoint_in_catch_up("shop.people"))
    machine.position = position
    for each in (Started(), SourcesAnswered(BOTH)):
        machine.handle(each)
    assert isinstance(only(machine.handle(SchemasAnswered(SCHEMAS)), Fail).error, CheckpointError)
    assert machine.position == position
