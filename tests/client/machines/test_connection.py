"""The connection machine: messages in, instructions out. No socket, no clock, no thread."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any, TypeVar

import pytest

from databus.client.machines.connection import ConnectionMachine
from databus.client.machines.connection_messages import (
    NO_PROGRESS,
    BeginBootstrap,
    Closed,
    ConnectionInstruction,
    Disconnect,
    Fail,
    GetSchemas,
    GetSources,
    GetStream,
    HalfWindow,
    MoveOn,
    PointNotFound,
    Progress,
    ReportProblem,
    RequestFailed,
    RollBack,
    SchemasAnswered,
    SchemaUnknown,
    ServersTaken,
    SourcesAnswered,
    Started,
    StreamAnswered,
    UseBindings,
    Wait,
    Waited,
    WindowTooLarge,
)
from databus.client.machines.position import Position, parse_start
from databus.client.machines.server_set import Servers
from databus.client.machines.states import Connection
from databus.client.responses import StreamHeaders
from databus.client.subscription import RegisteredSchema, Subscription
from databus.conf.settings import BackOffSettings, ClientSettings
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import (
    IncompatibleSchemaError,
    InvalidParameterError,
    OtherLogError,
    SchemaNotFoundError,
    ScnNotFoundError,
    ServerError,
    SettingsError,
    UnauthorizedError,
    UnknownCommandError,
    UnknownSourceError,
    WindowTooLargeError,
)
from databus.schemas.filters import ModFilter
from tests.client.shop import (
    CUSTOMERS,
    CUSTOMERS_ID,
    ORDERS,
    ORDERS_ID,
    SCHEMAS,
    WIDER_ORDERS,
    registered,
)

A, B, C = "http://a", "http://b", "http://c"
BOTH = {"shop.orders": ORDERS_ID, "shop.customers": CUSTOMERS_ID}
ONLY_ORDERS = {"shop.orders": ORDERS_ID}

Kind = TypeVar("Kind", bound=ConnectionInstruction)


def make_machine(
    *relays: str,
    start: str = "earliest",
    subscription: Subscription | None = None,
    is_impatient: bool = False,
    bootstraps: tuple[str, ...] = (),
    **settings: Any,
) -> ConnectionMachine:
    relays = relays or (A,)
    back_off = BackOffSettings(first_s=1.0, max_s=10.0, jitter=0.0)
    return ConnectionMachine(
        subscription or Subscription(("shop.orders",)),
        Servers(relays, bootstraps),
        parse_start(start),
        ClientSettings(relays=relays, back_off=back_off, **settings),
        Random(1),
        *([True] if is_impatient else []),
    )


def stream_machine(*relays: str, offered: dict[str, int] = ONLY_ORDERS, **options: Any) -> Any:
    """Return a machine that streams, and its first stream request."""
    machine = make_machine(*relays, **options)
    return machine, connect(machine, Started(), offered)


def connect(machine: ConnectionMachine, first: Any, offered: dict[str, int]) -> GetStream:
    machine.handle(first)
    machine.handle(SourcesAnswered(offered))
    return only(machine.handle(SchemasAnswered(registered(ORDERS, CUSTOMERS))), GetStream)


def only(instructions: list[ConnectionInstruction], kind: type[Kind]) -> Kind:
    (found,) = [i for i in instructions if isinstance(i, kind)]
    return found


def answered(
    scn: int | None = None, half: HalfWindow | None = None, **headers: Any
) -> StreamAnswered:
    position = None if scn is None else Position(Checkpoint.at(scn, 1000 + scn))
    is_empty = scn is None and half is None
    return StreamAnswered(
        0 if is_empty else 9, 99.0, StreamHeaders(**headers), Progress(position, half)
    )


def failed(text: str = "down") -> RequestFailed:
    return RequestFailed(ServerError(A, text))


def test_sources_are_asked_for_then_registered_then_streamed() -> None:
    machine = make_machine()
    assert machine.handle(Started()) == [GetSources(A)]
    assert machine.handle(SourcesAnswered(BOTH)) == [GetSchemas(A, (ORDERS_ID,))]
    bound, request = machine.handle(SchemasAnswered(registered(ORDERS)))
    assert isinstance(bound, UseBindings)
    assert bound.bindings[ORDERS_ID].name == "shop.orders"
    assert isinstance(request, GetStream)
    assert request.checkpoint.is_flexible
    assert machine.state is Connection.STREAMING


def test_relays_are_tried_in_random_order_and_then_in_turn() -> None:
    orders = set()
    for seed in range(20):
        machine = make_machine(A, B, C)
        machine = ConnectionMachine(
            Subscription(("shop.orders",)),
            Servers((A, B, C)),
            parse_start("earliest"),
            ClientSettings(relays=(A, B, C)),
            Random(seed),
        )
        picked = [only(machine.handle(Started()), GetSources).server]
        for _ in range(5):
            machine.handle(failed())
            picked.append(only(machine.handle(Waited()), GetSources).server)
        assert picked[:3] == picked[3:]
        assert set(picked) == {A, B, C}
        orders.add(tuple(picked[:3]))
    assert len(orders) > 2


def test_waits_grow_until_something_succeeds() -> None:
    machine = make_machine(A, B)
    machine.handle(Started())
    waits = []
    for _ in range(6):
        waits.append(only(machine.handle(failed()), Wait).seconds)
        machine.handle(Waited())
    assert waits == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    machine.handle(SourcesAnswered(ONLY_ORDERS))
    machine.handle(SchemasAnswered(registered(ORDERS)))
    machine.handle(answered(5))
    assert only(machine.handle(failed()), Wait).seconds == 1.0


def test_a_source_that_the_relay_has_not_sends_the_client_to_the_next() -> None:
    machine = make_machine(A, B)
    first = only(machine.handle(Started()), GetSources).server
    instructions = machine.handle(SourcesAnswered({"shop.people": 9}))
    assert "shop.orders" in str(only(instructions, ReportProblem).error)
    assert only(instructions, Wait)
    assert only(machine.handle(Waited()), GetSources).server != first


def test_an_impatient_client_fails_when_every_relay_refuses() -> None:
    machine = make_machine(A, B, is_impatient=True)
    machine.handle(Started())
    assert only(machine.handle(SourcesAnswered({"shop.people": 9})), Wait)
    machine.handle(Waited())
    error = only(machine.handle(SourcesAnswered({"shop.people": 9})), Fail).error
    assert isinstance(error, UnknownSourceError)
    assert "shop.people" in str(error)


def test_a_patient_client_goes_from_relay_to_relay_for_ever_when_every_one_refuses() -> None:
    machine = make_machine(A, B)
    machine.handle(Started())
    refusals: list[Any] = [
        SourcesAnswered({"shop.people": 9}),
        RequestFailed(UnknownSourceError.answered(A, "shop.orders")),
        RequestFailed(UnauthorizedError.answered(A, "no token")),
        RequestFailed(UnknownCommandError.answered(A, "/sources")),
        failed("status 500 InternalError"),
    ]
    for refusal in refusals * 2:
        asked = set()
        for _ in range(2):
            asked.add(machine.server)
            assert only(machine.handle(refusal), Wait)
            only(machine.handle(Waited()), GetSources)
        assert asked == {A, B}


def test_a_relay_that_is_down_is_no_refusal() -> None:
    machine = make_machine(is_impatient=True)
    machine.handle(Started())
    assert only(machine.handle(failed()), Wait)


def test_what_every_relay_takes_for_nonsense_fails() -> None:
    machine, _ = stream_machine()
    error = InvalidParameterError.answered(A, "filters: too long")
    assert only(machine.handle(RequestFailed(error)), Fail).error is error


def test_fewer_schemas_than_sources_send_the_client_to_the_next() -> None:
    machine = make_machine(A, B, subscription=Subscription(("shop.orders", "shop.customers")))
    machine.handle(Started())
    machine.handle(SourcesAnswered(BOTH))
    assert only(machine.handle(SchemasAnswered(registered(ORDERS))), Wait)
    assert machine.state is Connection.PICKING_RELAY


def test_a_schema_that_makes_no_sense_sends_the_client_to_the_next() -> None:
    machine = make_machine(A, B)
    machine.handle(Started())
    machine.handle(SourcesAnswered(ONLY_ORDERS))
    schemas = (RegisteredSchema(ORDERS_ID, 1, '{"type": "record", "fields": 5}'),)
    assert only(machine.handle(SchemasAnswered(schemas)), Wait)
    assert only(machine.handle(Waited()), GetSources)


def test_an_impatient_client_fails_when_no_relay_has_the_schema() -> None:
    machine = make_machine(is_impatient=True)
    machine.handle(Started())
    machine.handle(SourcesAnswered(ONLY_ORDERS))
    error = only(machine.handle(SchemasAnswered(())), Fail).error
    assert isinstance(error, SchemaNotFoundError)


def test_a_schema_that_the_reader_cannot_take_fails_at_registration_naming_the_field() -> None:
    reader = SCHEMAS[ORDERS].replace('"name":"item"', '"name":"thing"')
    assert reader != SCHEMAS[ORDERS]
    machine = make_machine(
        A, B, subscription=Subscription(("shop.orders",), reader_schemas={"shop.orders": reader})
    )
    machine.handle(Started())
    machine.handle(SourcesAnswered(ONLY_ORDERS))
    error = only(machine.handle(SchemasAnswered(registered(ORDERS))), Fail).error
    assert isinstance(error, IncompatibleSchemaError)
    assert error.field == "thing"
    assert machine.state is Connection.CLOSED


def test_filters_are_sent_by_the_ids_of_the_relay_in_hand() -> None:
    subscription = Subscription(("shop.orders",), filters={"shop.orders": ModFilter(4, 0, 2)})
    _, request = stream_machine(subscription=subscription)
    assert request.filters == (
        '{"40":{"partitionType":"MOD","filters":[{"numBuckets":4,"bktRange":{"start":0,"end":2}}]}}'
    )


def test_reading_goes_on_after_the_last_whole_window() -> None:
    machine, _ = stream_machine()
    request = only(machine.handle(answered(5)), GetStream)
    assert request.checkpoint == Checkpoint.at(5, 1005)


def test_a_window_larger_than_size_goes_on_where_the_relay_says() -> None:
    machine, _ = stream_machine(offered=BOTH)
    answer = answered(5, HalfWindow(6, 3), resume=(6, 7))
    request = only(machine.handle(answer), GetStream)
    assert (request.checkpoint.window_scn, request.checkpoint.window_offset) == (6, 7)
    assert request.checkpoint.prev_scn == 5
    assert request.position.scn == 5


@pytest.mark.parametrize("resume", [(7, 5), (7, -1), (6, 1), (6, -1), (4, 9)])
def test_a_relay_that_would_leave_out_the_rest_of_a_window_is_refused(
    resume: tuple[int, int],
) -> None:
    machine, _ = stream_machine(A, B)
    machine.handle(answered(5))
    instructions = machine.handle(answered(None, HalfWindow(6, 3), resume=resume))
    assert f"says to continue at {resume[0]}, {resume[1]}" in str(
        only(instructions, ReportProblem).error
    )
    assert RollBack(5) in instructions
    assert connect(machine, Waited(), ONLY_ORDERS).checkpoint == Checkpoint.at(5, 1005)


def test_without_word_from_the_relay_events_are_counted_when_all_are_sent() -> None:
    machine, _ = stream_machine(offered=ONLY_ORDERS)
    request = only(machine.handle(answered(5, HalfWindow(6, 3))), GetStream)
    assert (request.checkpoint.window_scn, request.checkpoint.window_offset) == (6, 3)


@pytest.mark.parametrize("resume", [None, (6, 3)])
def test_behind_the_rest_of_a_window_reading_goes_on_as_behind_any(
    resume: tuple[int, int] | None,
) -> None:
    machine, _ = stream_machine(offered=ONLY_ORDERS)
    half = HalfWindow(6, 3)
    request = only(machine.handle(answered(5, half, resume=resume)), GetStream)
    assert (request.checkpoint.window_scn, request.checkpoint.window_offset) == (6, 3)
    assert only(machine.handle(answered(6)), GetStream).checkpoint == Checkpoint.at(6, 1006)


def test_a_relay_that_has_not_the_rest_of_a_window_it_began_without_a_word_is_told_of() -> None:
    machine, _ = stream_machine(A, B, offered=ONLY_ORDERS)
    half = HalfWindow(6, 3)
    machine.handle(answered(5, half))
    instructions = machine.handle(answered(None, half, is_ahead=True))
    told = str(only(instructions, ReportProblem).error)
    assert "has not reached scn 6, where it said to continue; going back" in told
    assert RollBack(5) in instructions
    assert connect(machine, Waited(), ONLY_ORDERS).checkpoint == Checkpoint.at(5, 1005)


def test_without_word_from_the_relay_a_filtered_window_is_read_again_in_one_piece() -> None:
    machine, first = stream_machine(offered=BOTH, fetch_bytes=2048)
    instructions = machine.handle(answered(5, HalfWindow(6, 3)))
    assert RollBack(5) in instructions
    request = only(instructions, GetStream)
    assert (request.checkpoint.window_scn, request.checkpoint.window_offset) == (5, -1)
    assert request.size_bytes == 2 * first.size_bytes
    assert only(machine.handle(answered(6)), GetStream).size_bytes == first.size_bytes


def test_a_window_too_large_for_this_client_ends_it_with_what_to_do() -> None:
    machine, _ = stream_machine()
    error = WindowTooLargeError(9, 5)
    instructions = machine.handle(WindowTooLarge(error, Progress(None, HalfWindow(6, 3))))
    assert only(instructions, Fail).error is error
    assert machine.state is Connection.CLOSED


def test_bootstrap_servers_that_are_named_later_are_used() -> None:
    machine, _ = stream_machine(start="5")
    machine.handle(ServersTaken(Servers((A,), ("http://x",))))
    assert only(machine.handle(PointNotFound(ScnNotFoundError(5, 100))), BeginBootstrap)


def test_a_window_that_never_fits_fails_naming_the_setting() -> None:
    machine, _ = stream_machine(offered=BOTH, fetch_bytes=2048, max_window_bytes=4096)
    machine.handle(answered(5, HalfWindow(6, 3)))
    full = replace(answered(None, HalfWindow(6, 3)), body_bytes=4000)
    error = only(machine.handle(full), Fail).error
    assert isinstance(error, SettingsError)
    assert "max_window_bytes = 4096" in str(error)


def test_a_relay_that_sends_less_of_a_window_than_was_asked_for_is_named() -> None:
    machine, _ = stream_machine(A, B, offered=BOTH, fetch_bytes=2048, max_window_bytes=4096)
    left = machine.server
    for _ in range(2):
        short = replace(answered(None, HalfWindow(6, 3)), body_bytes=150)
        instructions = machine.handle(short)
        if machine.state is Connection.STREAMING:  # with a larger size
            instructions = machine.handle(short)
        text = str(only(instructions, ReportProblem).error)
        assert "sends window 6" in text
        assert "150 bytes, though 4096 were asked for" in text
        assert "max_window_bytes" not in text
        assert machine.server == left
        left = connect(machine, Waited(), BOTH).server


def test_a_broken_connection_rolls_the_half_window_back_and_reads_it_again() -> None:
    machine, _ = stream_machine(A, B)
    machine.handle(answered(5, HalfWindow(6, 3), resume=(6, 3)))
    instructions = machine.handle(
        RequestFailed(ServerError(A, "cut"), Progress(None, HalfWindow(6, 5)))
    )
    assert instructions == [RollBack(5), Disconnect(), Wait(1.0)]
    request = connect(machine, Waited(), ONLY_ORDERS)
    assert request.checkpoint == Checkpoint.at(5, 1005)


def test_whole_windows_of_a_broken_answer_are_kept() -> None:
    machine, _ = stream_machine()
    position = Position(Checkpoint.at(8))
    instructions = machine.handle(RequestFailed(ServerError(A, "cut"), Progress(position, None)))
    assert instructions == [Disconnect(), Wait(1.0)]
    assert connect(machine, Waited(), ONLY_ORDERS).checkpoint.window_scn == 8


def test_an_event_larger_than_size_is_asked_for_with_its_size() -> None:
    machine, first = stream_machine(fetch_bytes=2048)
    grown = only(machine.handle(answered(pending_event_bytes=5000)), GetStream)
    assert grown.size_bytes == 5000
    assert only(machine.handle(answered(6)), GetStream).size_bytes == first.size_bytes


def test_an_event_larger_than_a_window_may_be_fails_naming_the_setting() -> None:
    machine, _ = stream_machine(fetch_bytes=2048, max_window_bytes=8192)
    doubt = only(machine.handle(answered(pending_event_bytes=9_000)), ReportProblem).error
    assert "max_window_bytes = 8192" in str(doubt)
    connect(machine, Waited(), ONLY_ORDERS)
    error = only(machine.handle(answered(pending_event_bytes=9_000)), Fail).error
    assert "max_window_bytes = 8192" in str(error)


def test_an_event_that_only_one_answer_says_is_too_large_ends_nothing() -> None:
    machine, _ = stream_machine(A, B, fetch_bytes=2048, max_window_bytes=8192)
    for size_bytes in (1 << 40, 1 << 41, 9_000):
        left = machine.server
        assert str(size_bytes) in str(
            only(machine.handle(answered(pending_event_bytes=size_bytes)), ReportProblem).error
        )
        assert connect(machine, Waited(), ONLY_ORDERS).server != left
    machine.handle(answered(5))
    again = machine.handle(answered(pending_event_bytes=9_000))
    assert not [i for i in again if isinstance(i, Fail)], "good answers came in between"


def test_a_relay_that_does_not_send_what_was_asked_for_is_left() -> None:
    machine, _ = stream_machine(A, B, fetch_bytes=2048)
    machine.handle(answered(pending_event_bytes=5000))
    assert only(machine.handle(answered(pending_event_bytes=5000)), Wait)
    assert machine.state is Connection.PICKING_RELAY


def test_scn_not_found_is_asked_of_every_relay_before_the_client_gives_up() -> None:
    machine, _ = stream_machine(A, B, start="100")
    assert only(machine.handle(PointNotFound(ScnNotFoundError(100, 500))), Wait)
    connect(machine, Waited(), ONLY_ORDERS)
    error = only(machine.handle(PointNotFound(ScnNotFoundError(100, 300))), Fail).error
    assert isinstance(error, ScnNotFoundError)
    assert (error.scn, error.oldest) == (100, 300)
    for part in ("scn 100 is gone", "oldest held is 300", "bootstrap_servers", "earliest"):
        assert part in str(error)


def test_a_relay_that_was_taken_away_may_hold_the_point_when_it_is_back() -> None:
    machine, first = stream_machine(A, B, start="100")
    machine.handle(PointNotFound(ScnNotFoundError(100, 500)))
    second = connect(machine, Waited(), ONLY_ORDERS)
    machine.handle(ServersTaken(Servers((second.server,))))
    machine.handle(ServersTaken(Servers((A, B))))
    assert only(machine.handle(PointNotFound(ScnNotFoundError(100, 500))), Wait)
    asked = {connect(machine, Waited(), ONLY_ORDERS).server}
    if first.server not in asked:
        assert only(machine.handle(failed()), Wait)
        asked.add(connect(machine, Waited(), ONLY_ORDERS).server)
    assert first.server in asked


def test_a_checkpoint_in_mid_bootstrap_without_bootstrap_servers_fails_naming_the_setting() -> None:
    machine = make_machine()
    machine.position = Position(Checkpoint.at(3).start_bootstrap())
    machine.handle(Started())
    machine.handle(SourcesAnswered(ONLY_ORDERS))
    error = only(machine.handle(SchemasAnswered(registered(ORDERS))), Fail).error
    assert isinstance(error, SettingsError)
    assert "bootstrap_servers" in str(error)
    assert machine.state is Connection.CLOSED


def test_pauses_between_polls_grow_until_something_comes() -> None:
    machine, _ = stream_machine()
    nothing = StreamAnswered(0, 0.0, StreamHeaders(), NO_PROGRESS)

    def pauses() -> list[float]:
        found = []
        for _ in range(3):
            found.append(only(machine.handle(nothing), Wait).seconds)
            machine.handle(Waited())
        return found

    before = pauses()
    assert before[0] < before[1] < before[2]
    machine.handle(answered(7))
    # Where no window proves the log, one is asked for once, and no pause follows.
    assert only(machine.handle(nothing), GetStream).may_be_held
    assert pauses()[0] <= before[0] * 1.5


def test_a_relay_that_is_down_may_still_hold_the_point() -> None:
    machine, _ = stream_machine(A, B, start="100")
    machine.handle(PointNotFound(ScnNotFoundError(100, 500)))
    machine.handle(Waited())
    assert only(machine.handle(failed()), Wait)
    connect(machine, Waited(), ONLY_ORDERS)
    assert only(machine.handle(PointNotFound(ScnNotFoundError(100, 500))), Wait)
    request = connect(machine, Waited(), ONLY_ORDERS)
    assert request.checkpoint.window_scn == 100


def test_a_new_schema_in_the_stream_is_registered_without_starting_again() -> None:
    machine, _ = stream_machine()
    progress = Progress(Position(Checkpoint.at(7)), None)
    instructions = machine.handle(SchemaUnknown(b"?", progress))
    assert instructions == [Disconnect(), GetSchemas(A, (ORDERS_ID,))]
    schemas = registered(ORDERS, WIDER_ORDERS)
    request = only(machine.handle(SchemasAnswered(schemas)), GetStream)
    assert request.checkpoint.window_scn == 7


def unknown(digest: bytes = b"?", at: int = 7, half: HalfWindow | None = None) -> SchemaUnknown:
    return SchemaUnknown(digest, Progress(Position(Checkpoint.at(at)), half), ORDERS_ID, at + 1)


def test_a_schema_that_a_relay_never_lists_is_an_error_that_is_tried_again_with_pauses() -> None:
    machine, _ = stream_machine()
    machine.handle(unknown())
    machine.handle(SchemasAnswered(registered(ORDERS)))
    waits = []
    for _ in range(4):
        instructions = machine.handle(unknown())
        error = only(instructions, ReportProblem).error
        assert isinstance(error, SchemaNotFoundError)
        assert str(error) == (
            f"{A} sends rows of source shop.orders ({ORDERS_ID}) at scn 8 with schema 3f, "
            "which it does not list at /register"
        )
        waits.append(only(instructions, Wait).seconds)
        assert connect(machine, Waited(), ONLY_ORDERS).checkpoint.window_scn == 7
    assert waits == [1.0, 2.0, 4.0, 8.0]
    machine.handle(answered(8))
    assert machine.position.scn == 8


def test_a_schema_that_a_relay_never_lists_is_asked_of_another_relay() -> None:
    machine, _ = stream_machine(A, B)
    left = machine.server
    machine.handle(unknown())
    machine.handle(SchemasAnswered(registered(ORDERS)))
    machine.handle(unknown())
    assert only(machine.handle(Waited()), GetSources).server != left


def test_a_schema_is_asked_for_again_after_another_one_and_after_more_windows() -> None:
    machine, _ = stream_machine()
    for message in (unknown(), unknown(b"!"), unknown(b"!", at=8), unknown(at=9)):
        assert machine.handle(message) == [Disconnect(), GetSchemas(A, (ORDERS_ID,))]
        machine.handle(SchemasAnswered(registered(ORDERS)))
    assert only(machine.handle(unknown(at=9)), ReportProblem)


def test_an_unknown_schema_behind_the_half_of_a_window_is_not_asked_for_without_pause() -> None:
    machine, _ = stream_machine(start="7")
    waits = []
    for _ in range(4):
        machine.handle(answered(half=HalfWindow(8, 3), resume=(8, 3)))
        instructions = machine.handle(unknown(half=HalfWindow(8, 3)))
        waits += [i.seconds for i in instructions if isinstance(i, Wait)]
        if waits:
            connect(machine, Waited(), ONLY_ORDERS)
        else:
            machine.handle(SchemasAnswered(registered(ORDERS)))
    assert waits == [1.0, 2.0, 4.0]


def test_an_impatient_machine_fails_when_every_relay_lacks_a_schema() -> None:
    machine, _ = stream_machine(is_impatient=True)
    machine.handle(unknown())
    machine.handle(SchemasAnswered(registered(ORDERS)))
    assert isinstance(only(machine.handle(unknown()), Fail).error, SchemaNotFoundError)


def test_a_relay_behind_the_client_is_waited_for_when_it_is_the_only_one() -> None:
    machine, request = stream_machine(start="100")
    instructions = machine.handle(answered(is_ahead=True))
    assert only(instructions, Wait) == Wait(1.0)
    # Nobody would know otherwise that it waits, perhaps for ever.
    assert "scn 100" in str(only(instructions, ReportProblem).error)
    assert only(machine.handle(Waited()), GetStream) == request


def test_a_relay_behind_the_client_is_left_when_there_is_another() -> None:
    machine, _ = stream_machine(A, B, start="100")
    left = machine.server
    machine.handle(answered(is_ahead=True))
    assert only(machine.handle(Waited()), GetSources).server != left


def test_a_relay_that_does_not_hold_requests_is_not_asked_without_pause() -> None:
    machine, _ = stream_machine()
    waits = []
    for _ in range(12):
        waits.append(only(machine.handle(StreamAnswered(0, 0.001)), Wait).seconds)
        machine.handle(Waited())
    assert waits[0] <= 0.001
    assert 0.1 < waits[-1] <= 0.25
    assert only(machine.handle(StreamAnswered(0, 5.0)), GetStream)


def test_from_the_newest_on_the_place_that_the_relay_names_is_kept() -> None:
    machine, request = stream_machine(start="latest")
    assert request.is_from_latest
    request = only(machine.handle(answered(resume=(50, -1))), GetStream)
    assert not request.is_from_latest
    assert not request.may_be_held, "what only a header has said is soon made sure"
    assert request.checkpoint.window_scn == 50
    instructions = machine.handle(answered(resume=(50, -1)))
    assert only(instructions, MoveOn).position.scn == 50
    assert only(instructions, GetStream).may_be_held


@pytest.mark.parametrize("source", ["", "shop.orders"])
def test_a_newer_window_of_the_log_is_taken_over_and_passed_on_at_once(source: str) -> None:
    machine, _ = stream_machine(start=100)
    for window in ((90, 7, source), (95, 8, source)):
        instructions = machine.handle(answered(resume=(100, -1), log_window=window))
        assert only(instructions, MoveOn).position.checkpoint.log_window == window
    # A place that only a header names is passed on as soon as it is sure.
    machine.handle(answered(resume=(120, -1), log_window=(110, 8, source)))
    instructions = machine.handle(answered(resume=(120, -1)))
    assert only(instructions, MoveOn).position.checkpoint.log_window == (110, 8, source)
    # Neither an older one, nor one that is ahead of what was read.
    for other in ((105, 9, source), (121, 9, source), None):
        instructions = machine.handle(answered(resume=(120, -1), log_window=other))
        assert not [one for one in instructions if isinstance(one, MoveOn)]
        assert machine.position.checkpoint.log_window == (110, 8, source)


def test_a_place_without_a_proof_is_asked_for_one_once_without_waiting() -> None:
    machine, _ = stream_machine(start=100)
    window = (95, 7, "shop.orders")
    for scn, proof in ((100, window), (130, (130, 8, "shop.orders")), (140, None)):
        first = only(machine.handle(answered(scn)), GetStream)
        assert not first.may_be_held, "nothing tells yet what the log has there"
        again = machine.handle(answered(log_window=proof))
        assert only(again, GetStream).may_be_held, "it was told, or the relay has none nearer"
    has_rows = Progress(Position(Checkpoint.at(150, 9).with_mark((150, 9))), None)
    after = machine.handle(StreamAnswered(9, 99.0, StreamHeaders(), has_rows))
    assert only(after, GetStream).may_be_held, "its rows prove it"


def test_who_has_rows_takes_over_a_later_window_that_names_its_source() -> None:
    """Without a name, a relay that does not capture it would be taken for one of another log."""
    machine, _ = stream_machine(start=100)
    machine.position = Position(machine.position.checkpoint.with_mark((95, 7)))
    for window in ((99, 8, ""), (94, 8, "shop.orders")):
        machine.handle(answered(resume=(100, -1), log_window=window))
        assert machine.position.checkpoint.log_window is None
    machine.handle(answered(resume=(100, -1), log_window=(99, 8, "shop.orders")))
    checkpoint = machine.position.checkpoint
    assert (checkpoint.mark, checkpoint.log_window) == ((95, 7), (99, 8, "shop.orders"))


def test_from_the_newest_of_a_relay_that_never_held_a_window_nothing_is_missed() -> None:
    machine, _ = stream_machine(start="latest")
    instructions = machine.handle(answered(resume=(-1, -1)))
    request = only(machine.handle(Waited()) or instructions, GetStream)
    assert not request.is_from_latest
    assert request.checkpoint.is_flexible


def test_from_the_newest_of_a_relay_whose_source_is_at_its_beginning_is_after_scn_0() -> None:
    machine, _ = stream_machine(start="latest")
    request = only(machine.handle(answered(resume=(0, -1))), GetStream)
    assert not request.is_from_latest
    assert (request.checkpoint.window_scn, request.checkpoint.window_offset) == (0, -1)


def test_from_the_newest_on_a_half_window_that_breaks_is_not_skipped() -> None:
    machine, _ = stream_machine(start="latest")
    machine.handle(RequestFailed(ServerError(A, "cut"), Progress(None, HalfWindow(60, 2))))
    request = connect(machine, Waited(), ONLY_ORDERS)
    assert not request.is_from_latest
    assert (request.checkpoint.window_scn, request.checkpoint.window_offset) == (60, 0)


def test_a_relay_that_says_to_go_back_is_left() -> None:
    machine, _ = stream_machine(A, B, start="100")
    assert only(machine.handle(answered(110, resume=(90, -1))), Wait)
    assert machine.position.scn == 110


FORGED = 1 << 62


@pytest.mark.parametrize("offset", [-1, 0, 7])
@pytest.mark.parametrize("relays", [(A,), (A, B)])
def test_a_place_that_only_a_header_leads_to_is_left_when_no_relay_has_it(
    relays: tuple[str, ...], offset: int
) -> None:
    machine, _ = stream_machine(*relays, start="100")
    machine.handle(answered(105))
    liar = machine.server
    instructions = machine.handle(answered(resume=(FORGED, offset)))
    assert not [i for i in instructions if isinstance(i, MoveOn)], "nobody is told of it"
    assert only(instructions, GetStream).checkpoint.window_scn == FORGED
    error = only(machine.handle(answered(is_ahead=True)), ReportProblem).error
    assert str(FORGED) in str(error)
    assert str(liar) in str(error)
    request = connect(machine, Waited(), ONLY_ORDERS)
    assert (request.checkpoint.window_scn, request.checkpoint.window_offset) == (105, -1)


def test_the_newest_that_no_relay_has_is_asked_for_again() -> None:
    machine, _ = stream_machine(start="latest")
    machine.handle(answered(resume=(FORGED, -1)))
    machine.handle(answered(is_ahead=True))
    assert connect(machine, Waited(), ONLY_ORDERS).is_from_latest


def test_a_place_is_told_of_once_a_relay_that_was_asked_there_has_it() -> None:
    machine, _ = stream_machine(start="100")
    machine.handle(answered(resume=(200, -1)))
    instructions = machine.handle(answered(resume=(300, -1)))
    assert only(instructions, MoveOn).position.scn == 200
    assert only(instructions, GetStream).checkpoint.window_scn == 300
    # What comes from there on says it, too, and is told of by itself.
    assert not [i for i in machine.handle(answered(301)) if isinstance(i, MoveOn)]
    assert only(machine.handle(answered(is_ahead=True)), Wait)
    assert machine.position.scn == 301


def test_before_a_bootstrap_nothing_is_taken_for_read_that_only_a_header_said() -> None:
    machine, _ = stream_machine(start="100", bootstraps=("http://x",))
    machine.handle(answered(105))
    machine.handle(answered(resume=(FORGED, -1)))
    begun = only(machine.handle(PointNotFound(ScnNotFoundError(FORGED, 5))), BeginBootstrap)
    assert begun.checkpoint.bootstrap_since_scn == 105


@pytest.mark.parametrize("resume", [(110, 3), (110, 0), (109, -1), (109, 8)])
def test_a_place_before_what_was_read_is_refused(resume: tuple[int, int]) -> None:
    machine, _ = stream_machine(A, B, start="100")
    error = only(machine.handle(answered(110, resume=resume)), ReportProblem).error
    assert f"continue at {resume[0]}, {resume[1]}" in str(error)
    assert connect(machine, Waited(), ONLY_ORDERS).checkpoint == Checkpoint.at(110, 1110)


def test_within_a_window_that_is_left_out_the_place_does_not_go_back() -> None:
    machine, _ = stream_machine(A, B, start="100")
    machine.handle(answered(resume=(101, 50)))
    assert only(machine.handle(answered(resume=(101, 90))), GetStream)
    assert only(machine.handle(answered(resume=(101, 60))), ReportProblem)
    assert connect(machine, Waited(), ONLY_ORDERS).checkpoint.window_scn == 100


def test_a_relay_that_was_behind_once_is_asked_again_after_another_has_served() -> None:
    machine, first = stream_machine(A, B, start="5")
    machine.handle(PointNotFound(ScnNotFoundError(5, 100)))
    second = connect(machine, Waited(), ONLY_ORDERS)
    assert second.server != first.server
    machine.handle(answered(110))
    instructions = machine.handle(PointNotFound(ScnNotFoundError(110, 200)))
    assert not [one for one in instructions if isinstance(one, Fail)]
    assert connect(machine, Waited(), ONLY_ORDERS).server == first.server


def test_a_relay_that_was_refused_once_may_refuse_again_after_another_has_served() -> None:
    refusal = RequestFailed(InvalidParameterError.answered(A, "sources"))
    machine, _ = stream_machine(A, B)
    for scn in (10, 20, 30):
        machine.handle(refusal)
        connect(machine, Waited(), ONLY_ORDERS)
        machine.handle(answered(scn))
    machine.handle(refusal)
    assert machine.state is Connection.PICKING_RELAY


def test_what_the_newest_turned_out_to_be_is_kept_when_a_relay_does_not_have_it() -> None:
    machine, _ = stream_machine(A, B, start="latest")
    machine.handle(answered(resume=(50, -1)))
    machine.handle(PointNotFound(ScnNotFoundError(50, 100)))
    request = connect(machine, Waited(), ONLY_ORDERS)
    assert (request.is_from_latest, request.checkpoint.window_scn) == (False, 50)


@pytest.mark.parametrize(("start", "scn"), [("100", 105), ("latest", 200)])
def test_behind_a_place_that_is_gone_reading_begins_anew_as_from_one_that_is_sure(
    start: str, scn: int
) -> None:
    machine, first = stream_machine(A, B, start=start)
    if start != "latest":
        machine.handle(answered(105))
    machine.handle(answered(resume=(200, -1)))
    machine.handle(PointNotFound(ScnNotFoundError(200, 300)))
    request = connect(machine, Waited(), ONLY_ORDERS)
    assert request.server != first.server
    assert (request.checkpoint.window_scn, request.may_be_held) == (scn, True)
    told = str(only(machine.handle(answered(is_ahead=True)), ReportProblem).error)
    assert f"has not reached scn {scn} yet; if that lasts" in told, "it is the relay that is behind"


def test_a_relay_that_has_not_come_where_another_has_led_is_told_of_with_that_one() -> None:
    machine, first = stream_machine(A, B, start="5")
    machine.handle(answered(resume=(90, -1)))
    machine.handle(failed())
    second = connect(machine, Waited(), ONLY_ORDERS)
    assert second.checkpoint.window_scn == 90
    told = only(machine.handle(answered(is_ahead=True)), ReportProblem).error
    assert f"scn 90, where {first.server} said to continue" in str(told)
    again = connect(machine, Waited(), ONLY_ORDERS)
    assert again.checkpoint.window_scn == 5
    # It has gone back: from here on it is the relay that is behind.
    assert "if that lasts" in str(
        only(machine.handle(answered(is_ahead=True)), ReportProblem).error
    )


def test_while_it_waits_a_new_set_of_servers_is_tried_at_once() -> None:
    machine, _ = stream_machine(A)
    machine.handle(failed())
    assert machine.state is Connection.PICKING_RELAY
    assert machine.handle(ServersTaken(Servers((A,)))) == []
    assert only(machine.handle(ServersTaken(Servers((A, B)))), GetSources).server == B


def test_new_servers_that_have_the_present_one_change_nothing() -> None:
    machine, _ = stream_machine()
    assert machine.handle(ServersTaken(Servers((A, B)))) == []


def test_a_server_that_is_gone_is_left_and_its_half_window_rolled_back() -> None:
    machine, _ = stream_machine()
    machine.handle(answered(5, HalfWindow(6, 3), resume=(6, 3)))
    instructions = machine.handle(ServersTaken(Servers((B,))))
    assert instructions == [RollBack(5), Disconnect(), GetSources(B)]


def test_a_client_may_be_made_to_pick_again() -> None:
    machine, _ = stream_machine()
    assert GetSources(A) in machine.handle(ServersTaken(Servers((A,)), must_pick_again=True))


def test_without_relays_the_machine_waits_for_some() -> None:
    machine, _ = stream_machine()
    assert only(machine.handle(ServersTaken(Servers(()))), Wait)
    assert machine.handle(ServersTaken(Servers((B,)))) == [Disconnect(), GetSources(B)]


def test_closing_ends_it_once() -> None:
    machine, _ = stream_machine()
    assert machine.handle(Closed()) == [Disconnect()]
    assert machine.handle(Closed()) == []


@pytest.mark.parametrize("start", ["yesterday", "-1", "1.5", "", str(1 << 63)])
def test_a_start_that_means_nothing_is_refused(start: str) -> None:
    with pytest.raises(SettingsError, match="names no place"):
        parse_start(start)


OTHER_LOG = RequestFailed(OtherLogError("another log"))


def marked(scn: int) -> Progress:
    """Return that a whole window with rows came."""
    return Progress(Position(Checkpoint.at(0)).after_window(scn, 1000 + scn, has_rows=True), None)


def test_a_relay_is_shown_a_window_of_the_log_until_it_has_answered_once() -> None:
    machine, request = stream_machine(A, B, offered=BOTH)
    assert request.checkpoint.mark is None
    request = only(machine.handle(StreamAnswered(9, 99.0, StreamHeaders(), marked(5))), GetStream)
    assert (request.checkpoint.mark, request.position.checkpoint.mark) == (None, (5, 1005))
    for _ in range(3):  # another relay, or the same one after a failure
        machine.handle(failed())
        machine.handle(Waited())
        request = register(machine)
        assert request.checkpoint.mark == (5, 1005)
        machine.handle(answered(is_ahead=True))  # it has not come so far, and could not look
        machine.handle(Waited())
        request = register(machine)
        assert request.checkpoint.mark == (5, 1005)
        request = only(machine.handle(StreamAnswered(0, 99.0, StreamHeaders())), GetStream)
        assert request.checkpoint.mark is None


def register(machine: ConnectionMachine) -> GetStream:
    machine.handle(SourcesAnswered(BOTH))
    return only(machine.handle(SchemasAnswered(registered(ORDERS, CUSTOMERS))), GetStream)


def test_a_relay_of_another_log_is_passed_over_and_when_all_are_it_is_over() -> None:
    machine, _ = stream_machine(A, B, offered=BOTH)
    machine.handle(StreamAnswered(9, 99.0, StreamHeaders(), marked(5)))
    first = machine.server
    assert only(machine.handle(OTHER_LOG), Wait)
    machine.handle(Waited())
    assert machine.server != first
    register(machine)
    assert isinstance(only(machine.handle(OTHER_LOG), Fail).error, OtherLogError)
    assert machine.position.scn == 5
