"""A connection as a state machine: frames in, steps out, never two frames for one request."""

from __future__ import annotations

import pytest

from databus.relay.serving.canal.protocol.errors import CanalError
from databus.relay.serving.canal.protocol.packets import PacketType, failure, success
from databus.relay.serving.canal.protocol.passwords import Login, hash_of, scramble
from databus.relay.serving.canal.protocol.session import Action, Session, Step, Wanted, wait_of
from databus.relay.serving.protobuf import bytes_field, number_field, text_field

SEEDS = bytes(range(1, 9))
NAMED = text_field(1, "example") + text_field(2, "1001")


def frame(kind: int, body: bytes = b"") -> bytes:
    return number_field(3, kind) + bytes_field(5, body)


def auth(user: str = "canal", password: bytes = b"canal", more: bytes = b"") -> bytes:
    sent = text_field(1, user) + bytes_field(2, scramble(password, SEEDS))
    return frame(PacketType.AUTHENTICATION, sent + more)


def make_session() -> Session:
    return Session(Login("canal", hash_of(b"canal")), SEEDS, 3600.0)


@pytest.fixture
def session() -> Session:
    found = make_session()
    assert found.receive(auth()) == Step(success())
    return found


def wanted_of(session: Session, kind: int, body: bytes) -> Wanted:
    wanted = session.receive(frame(kind, body)).wanted
    assert wanted is not None
    return wanted


def test_nobody_is_served_before_a_login() -> None:
    for kind in (*PacketType, 0, 9, 99):
        if kind != PacketType.AUTHENTICATION:
            session = make_session()
            step = session.receive(frame(kind, NAMED))
            assert step.wanted is None
            assert step.closes
            assert b"NOT supported" in step.answer
            assert not session.is_admitted


def test_a_wrong_login_is_refused_and_the_connection_closed() -> None:
    for user, password in (("canal", b"x"), ("root", b"canal"), ("canal", b"")):
        session = make_session()
        step = session.receive(auth(user, password))
        assert step == Step(failure(400, f"auth failed for user:{user}"), closes=True)
        assert not session.is_admitted


def test_a_login_may_subscribe_and_says_how_long_it_may_be_silent() -> None:
    session = make_session()
    more = number_field(3, 5000) + number_field(4, 90_000_000)
    more += text_field(5, "example") + text_field(6, "7") + text_field(7, ".*")
    wanted = session.receive(auth(more=more)).wanted
    assert wanted == Wanted(Action.SUBSCRIBE, "example", 7, filter_text=".*")
    assert session.done(wanted) == success()
    assert session.idle_s == 5.0


def test_requests_are_read(session: Session) -> None:
    filtered = NAMED + text_field(7, "a,b")
    wanted = wanted_of(session, PacketType.SUBSCRIPTION, filtered)
    assert wanted == Wanted(Action.SUBSCRIBE, "example", 1001, filter_text="a,b")
    wanted = wanted_of(session, PacketType.UNSUBSCRIPTION, NAMED)
    assert wanted == Wanted(Action.UNSUBSCRIBE, "example", 1001)
    body = NAMED + number_field(3, 50) + number_field(4, 2) + number_field(5, 3)
    wanted = wanted_of(session, PacketType.GET, body)
    assert (wanted.action, wanted.size, wanted.wait_s) == (Action.GET, 50, 2.0)
    assert session.done(wanted, b"batch") == b"batch"
    wanted = wanted_of(session, PacketType.CLIENT_ROLLBACK, NAMED)
    assert wanted == Wanted(Action.ROLL_BACK, "example", 1001)
    assert session.done(wanted) == b""


@pytest.mark.parametrize(
    ("timeout", "unit", "wait_s"),
    [
        *((-1, 2, 0.0), (-5, -1, 0.0), (0, 3, None), (1500, 2, 1.5), (1500, -1, 1.5)),
        *((5, 0, 5e-9), (5, 1, 5e-6), (5, 3, 5.0), (5, 4, 300.0), (1, 5, 3600.0), (1, 6, 86400.0)),
        (7, 99, 0.007),
    ],
)
def test_timeouts_have_units(timeout: int, unit: int, wait_s: float | None) -> None:
    assert wait_of(timeout, unit) == (wait_s if wait_s is None else pytest.approx(wait_s))


def test_a_size_that_is_left_out_is_1000(session: Session) -> None:
    assert wanted_of(session, PacketType.GET, NAMED).size == 1000


@pytest.mark.parametrize("kind", [PacketType.CLIENT_ACK, PacketType.CLIENT_ROLLBACK])
def test_the_error_of_what_has_no_answer_is_the_next_answer(session: Session, kind: int) -> None:
    wanted = wanted_of(session, kind, NAMED + number_field(3, 5))
    assert session.failed(wanted, CanalError(400, "batchId:5 is not exist")) == b""
    refused = session.receive(frame(PacketType.GET, NAMED))
    assert refused == Step(failure(400, "batchId:5 is not exist"))
    # And only that one: the connection goes on in step.
    assert wanted_of(session, PacketType.GET, NAMED).action is Action.GET


def test_a_batch_id_of_0_cannot_be_acknowledged_and_that_of_no_batch_is_ignored(
    session: Session,
) -> None:
    assert session.receive(frame(PacketType.CLIENT_ACK, NAMED + number_field(3, -1))) == Step()
    assert session.receive(frame(PacketType.CLIENT_ACK, NAMED)) == Step()
    answer = session.receive(frame(PacketType.SUBSCRIPTION, NAMED)).answer
    assert answer == failure(402, "batchId should assign value. A batch has no id 0")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", 401),
        (text_field(1, "example"), 401),
        (text_field(2, "1001"), 401),
        (text_field(1, "example") + text_field(2, "x"), 400),
        (text_field(1, "example") + text_field(2, "32768"), 400),
        (text_field(1, "example") + text_field(2, "1" * 300), 400),
        (text_field(1, "e" * 300) + text_field(2, "1"), 400),
    ],
)
def test_a_request_names_destination_and_client(session: Session, body: bytes, code: int) -> None:
    answer = session.receive(frame(PacketType.SUBSCRIPTION, body)).answer
    assert number_field(1, code) in answer
    assert session.receive(frame(PacketType.CLIENT_ROLLBACK, body)) == Step()
    assert number_field(1, code) in session.receive(frame(PacketType.GET, NAMED)).answer


def test_other_packets_are_refused_and_the_connection_goes_on(session: Session) -> None:
    for kind in (0, PacketType.AUTHENTICATION, PacketType.MESSAGES, 9, 10, 11, 77, -1):
        step = session.receive(frame(kind, NAMED))
        assert b"NOT supported" in step.answer
        assert not step.closes
