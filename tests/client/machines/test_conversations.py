"""The machines under any conversation: whatever servers answer, no step is ever illegal.

What a request may be answered with is what `ServerRequests` and `Puller` make of
answers. What the answers say is drawn from what is right, from what is at a limit,
and from what only a hostile server says.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from databus.client.machines.bootstrap_steps import CLASSIC
from databus.client.machines.connection import ConnectionMachine
from databus.client.machines.connection_messages import (
    NO_PROGRESS,
    REQUESTS,
    Closed,
    ConnectionInstruction,
    ConnectionStateMessage,
    Fail,
    GetPage,
    GetPosition,
    GetSchemas,
    GetSources,
    GetStartScn,
    GetStream,
    GetTargetScn,
    HalfWindow,
    PageAnswered,
    PageFacts,
    PointNotFound,
    PositionAnswered,
    Progress,
    RequestFailed,
    SchemasAnswered,
    SchemaUnknown,
    ServersTaken,
    SourcesAnswered,
    Started,
    StartScnAnswered,
    StreamAnswered,
    TargetScnAnswered,
    Wait,
    Waited,
    WindowTooLarge,
)
from databus.client.machines.lifecycle import (
    LifecycleMachine,
    LifecycleMessage,
    Pause,
    Resume,
    ShutDown,
    Start,
    Suspend,
)
from databus.client.machines.position import Position, parse_start, position_of
from databus.client.machines.server_set import (
    AddRelay,
    BeginRequest,
    EndRequest,
    RemoveRelay,
    ReplaceServers,
    Servers,
    ServerSetMachine,
)
from databus.client.machines.states import Connection, Lifecycle, ServerSet
from databus.client.responses import PageHeaders, StreamHeaders
from databus.client.subscription import RegisteredSchema, Subscription
from databus.conf.settings import ClientSettings
from databus.schemas.checkpoint import LINEAR, Checkpoint, ConsumptionMode
from databus.schemas.errors import (
    BootstrapTooOldError,
    BootstrapTooYoungError,
    DatabusError,
    IllegalTransitionError,
    InvalidParameterError,
    OtherLogError,
    ScnNotFoundError,
    ServerError,
    SettingsError,
    UnknownCommandError,
    UnknownSourceError,
)
from databus.schemas.scn import MAX_SCN
from tests.client.shop import CUSTOMERS, CUSTOMERS_ID, ORDERS, ORDERS_ID, registered

A, B = "http://a", "http://b"
X, Y = "http://x:1", "http://y:2"
SOURCES = ("shop.orders", "shop.customers")
OFFERED = {"shop.orders": ORDERS_ID, "shop.customers": CUSTOMERS_ID}

SCNS = (0, 1, 3, 5, 10, 20, 30, MAX_SCN)
SERVERS = (
    Servers((A,), (X,)),
    Servers((A, B), (X, Y)),
    Servers((B,), (X, f"{X}/")),  # one server, by two URLs
    Servers((A,)),
    Servers((), (X,)),
    Servers((A,), (Y,)),
)
ERRORS: tuple[DatabusError, ...] = (
    *[ServerError(A, "down")] * 4,
    UnknownCommandError.answered(A, "no"),
    InvalidParameterError.answered(A, "no"),
    UnknownSourceError.answered(A, "no"),
    BootstrapTooOldError.answered(A, "no"),
    BootstrapTooYoungError.answered(A, "no"),
    OtherLogError("another log"),
    ScnNotFoundError(-1, 3),
)
BOTH_SCHEMAS = registered(ORDERS, CUSTOMERS)
SCHEMAS = (registered(ORDERS), (), (RegisteredSchema(ORDERS_ID, 1, '{"type": "record"}'),))
PLACES = ((-1, -1), (0, -1), (3, -1), (5, 0), (5, 7), (10, -1), (20, 1), (MAX_SCN, -1), (-1, 4))
PENDING = (None, None, None, 1, 9000, 1 << 40)


class Peers:
    """Every server there is: mostly they answer well, now and then anything at all."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def answer(self, request: ConnectionInstruction) -> ConnectionStateMessage:
        """Return one of the messages that a request may be answered with."""
        is_good, one_of = self._rng.random() < 0.85, self._rng.choice
        match request:
            case Wait():
                return Waited()
            case GetStream():
                return self._stream_answer()
            case _ if self._rng.random() < 0.1:
                return RequestFailed(one_of(ERRORS))
            case GetSources():
                return SourcesAnswered(OFFERED if is_good else one_of(({}, {"shop.people": 9})))
            case GetSchemas():
                return SchemasAnswered(BOTH_SCHEMAS if is_good else one_of(SCHEMAS))
            case GetPosition():
                return PositionAnswered(one_of(SCNS))
            case GetStartScn():
                return StartScnAnswered(10 if is_good else one_of(SCNS), one_of(("", "one")))
            case GetTargetScn():
                scn = one_of((10, 20)) if is_good else one_of(SCNS)
                return TargetScnAnswered(scn, one_of((None, (3, 1003))))
        assert isinstance(request, GetPage)
        return self._good_page(request.checkpoint) if is_good else self._page_answer()

    def _stream_answer(self) -> ConnectionStateMessage:
        one_of = self._rng.choice
        halves = (None, None, HalfWindow(one_of(SCNS), one_of((0, 1, 3))))
        position = one_of((None, Position(Checkpoint.at(one_of(SCNS)))))
        progress = Progress(position, one_of(halves))
        headers = StreamHeaders(
            one_of((None, one_of(PLACES))), one_of(PENDING), self._rng.random() < 0.1
        )
        return one_of(
            (
                StreamAnswered(one_of((0, 9)), 9.0, headers, progress),
                StreamAnswered(9, 9.0, StreamHeaders(), progress),
                PointNotFound(ScnNotFoundError(one_of(SCNS), one_of(SCNS))),
                PointNotFound(ScnNotFoundError(one_of(SCNS), one_of(SCNS))),
                SchemaUnknown(one_of((b"?", b"!")), progress),
                RequestFailed(one_of(ERRORS), progress),
                WindowTooLarge(SettingsError("too large"), progress),
            )
        )

    def _good_page(self, asked: Checkpoint) -> PageAnswered:
        """Return a page that leads on: by one row, to the next window, or to the end."""
        answered = Checkpoint(
            ConsumptionMode.SNAPSHOT,
            asked.window_scn + 1,
            snapshot_offset=asked.snapshot_offset + 1,
        )
        return PageAnswered(PageFacts(answered, 1, 1000), PageHeaders(self._rng.random() < 0.5))

    def _page_answer(self) -> ConnectionStateMessage:
        one_of = self._rng.choice
        answered = Checkpoint(
            ConsumptionMode.SNAPSHOT,
            *one_of(PLACES),
            snapshot_offset=one_of((-1, 0, 1, 2, 50)),
            snapshot_source=one_of(("", *SOURCES)),
        )
        facts = PageFacts(answered, one_of((0, 2)), one_of((-1, 1000)))
        headers = PageHeaders(one_of((True, False)), one_of(PENDING))
        return one_of(
            (
                PageAnswered(facts, headers),
                PageAnswered(None, headers),
                SchemaUnknown(one_of((b"?", b"!"))),
                WindowTooLarge(SettingsError("too large")),
            )
        )


class Conversation:
    """What a puller does with a machine, without sockets."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._peers = Peers(rng)
        self._order = rng.choice((LINEAR, CLASSIC))
        self._sources = rng.choice((SOURCES, SOURCES[:1]))
        self._servers = rng.choice(SERVERS)
        self._is_impatient = rng.random() < 0.2
        self._pending: list[ConnectionInstruction] = []
        self._start(parse_start(rng.choice(("earliest", "latest", "beginning", "3"))))

    def step(self) -> None:
        """Let one thing happen: an answer, other servers, or a restart of the client."""
        asked = [one for one in self._pending if isinstance(one, REQUESTS)]
        has_failed = any(isinstance(one, Fail) for one in self._pending)
        assert len(asked) == (not has_failed), "it asks for one thing, or it has failed"
        assert has_failed == (self._machine.state is Connection.CLOSED)
        what = self._rng.random()
        if what < 0.03:
            self._change_servers()
        elif what < 0.05 or not asked:
            self._machine.handle(Closed())
            self._start(position_of(self._machine.position.checkpoint))
        else:
            self._pending = self._machine.handle(self._peers.answer(asked[0]))

    def _start(self, position: Position) -> None:
        self._machine = ConnectionMachine(
            Subscription(self._sources),
            self._servers,
            position,
            ClientSettings(relays=(A,), fetch_bytes=2048, bootstrap_order=self._order),
            self._rng,
            self._is_impatient,
        )
        self._pending = self._machine.handle(Started())

    def _change_servers(self) -> None:
        """Take other servers: what is asked for then takes the place of a request."""
        self._servers = self._rng.choice(SERVERS)
        taken = ServersTaken(self._servers, self._rng.random() < 0.3)
        if instead := self._machine.handle(taken):
            kept = [one for one in self._pending if not isinstance(one, REQUESTS)]
            self._pending = [*kept, *instead]


@settings(max_examples=300)
@given(st.randoms(use_true_random=True))
def test_no_conversation_leads_to_an_illegal_step_nor_ends_without_an_error(rng: Random) -> None:
    conversation = Conversation(rng)
    for _ in range(200):
        conversation.step()


@given(st.lists(st.sampled_from([Start(), Pause(), Resume(), Suspend(ValueError()), ShutDown()])))
def test_whatever_people_do_to_a_client_is_legal_and_nothing_follows_its_end(
    messages: list[LifecycleMessage],
) -> None:
    machine = LifecycleMachine()
    for message in messages:
        was = machine.state
        instructions = machine.handle(message)
        assert not (was is Lifecycle.SHUT_DOWN and instructions)


@given(
    st.lists(
        st.tuples(st.sampled_from(SERVERS), st.booleans(), st.sampled_from([A, B]), st.booleans())
    )
)
def test_a_change_of_servers_is_legal_at_any_moment_of_a_request(
    changes: list[tuple[Servers, bool, str, bool]],
) -> None:
    machine = ServerSetMachine(Servers((A,)))
    taken = machine.servers
    for wanted, must_pick_again, url, is_in_flight in changes:
        if is_in_flight:
            machine.handle(BeginRequest())
        told = machine.handle(ReplaceServers(wanted, must_pick_again))
        told += machine.handle(AddRelay(url)) + machine.handle(RemoveRelay(url))
        assert not (is_in_flight and told)
        if is_in_flight:
            told = machine.handle(EndRequest())
        taken = told[-1].servers if told else taken
        assert (machine.state, taken) == (ServerSet.IDLE, machine.servers)


@pytest.mark.parametrize("message", [BeginRequest(), EndRequest()])
def test_requests_that_do_not_take_turns_are_a_defect(message: BeginRequest | EndRequest) -> None:
    machine = ServerSetMachine(Servers((A,)))
    if isinstance(message, BeginRequest):
        machine.handle(message)
    with pytest.raises(IllegalTransitionError, match="_request"):
        machine.handle(message)


@pytest.mark.parametrize(
    "message",
    [
        Waited(),
        SourcesAnswered(OFFERED),
        SchemasAnswered(registered(ORDERS, CUSTOMERS)),
        StreamAnswered(0, 9.0),
        SchemaUnknown(b"?", NO_PROGRESS),
        StartScnAnswered(3),
        TargetScnAnswered(3),
        PageAnswered(),
    ],
)
def test_an_answer_to_what_was_not_asked_is_a_defect(message: ConnectionStateMessage) -> None:
    machine = ConnectionMachine(
        Subscription(SOURCES[:1]),
        Servers((A,)),
        parse_start("earliest"),
        ClientSettings(relays=(A,)),
        Random(1),
    )
    with pytest.raises(IllegalTransitionError, match="state initial has no step"):
        machine.handle(message)
