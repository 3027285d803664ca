"""One connection of a client of Canal, as a state machine: frames in, steps out. No I/O.

The server speaks first. A login, a subscription and a request for changes have one answer each; an
acknowledgement and a rollback have none. So their errors are kept, and are the answer of the next
request that has one: a client that got an error and an answer for one request would take every
later answer for that of another request. No request has two frames.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import NamedTuple

from databus.relay.serving.canal.protocol.errors import (
    BAD_REQUEST,
    NO_BATCH_ID,
    NO_NAME,
    CanalError,
)
from databus.relay.serving.canal.protocol.packets import (
    NO_BATCH,
    ClientRequest,
    Packet,
    PacketType,
    failure,
    handshake,
    read_auth,
    read_packet,
    read_request,
    success,
)
from databus.relay.serving.canal.protocol.passwords import Login

_CLIENT_ID = re.compile(r"[+-]?[0-9]{1,5}")
_SHORT = range(-(1 << 15), 1 << 15)
MOST_NAME_CHARS = 200
# By Canal's numbers; any other one means milliseconds.
_UNITS_S = {0: 1e-9, 1: 1e-6, 2: 1e-3, 3: 1.0, 4: 60.0, 5: 3600.0, 6: 86_400.0}
_MS = 2
_AT_ONCE = -1  # or any other negative timeout
_DEFAULT_SIZE = 1000


class Action(Enum):
    """What a client wants done."""

    SUBSCRIBE = auto()
    UNSUBSCRIBE = auto()
    GET = auto()
    ACKNOWLEDGE = auto()
    ROLL_BACK = auto()


class Wanted(NamedTuple):
    """A request that is to be carried out.

    `size` is that of a batch, `wait_s` how long it may wait for changes, None = as long as it is
    allowed to.
    """

    action: Action
    destination: str
    client_id: int
    filter_text: str = ""
    size: int = 0
    wait_s: float | None = 0.0
    batch_id: int = 0


class Step(NamedTuple):
    """What follows from a frame: an answer to send, a request to carry out, or neither."""

    answer: bytes = b""
    wanted: Wanted | None = None
    closes: bool = False  # after the answer


class Session:
    """One connection. Each request that `receive` returns is followed by `done` or `failed`."""

    def __init__(self, login: Login, seeds: bytes, most_idle_s: float) -> None:
        self.is_admitted = False
        self.user = ""
        self.idle_s = most_idle_s
        """How long it may be silent."""
        self._login, self._seeds = login, seeds
        self._pending: CanalError | None = None

    def hello(self) -> bytes:
        """Return the frame to begin with."""
        return handshake(self._seeds)

    def receive(self, frame: bytes) -> Step:
        """Take a frame; raises ProtocolError if it is malformed: the connection is of no use."""
        packet = read_packet(frame)
        if not self.is_admitted:
            return self._admit(packet)
        try:
            return self._take(packet)
        except CanalError as error:
            if packet.kind in (PacketType.CLIENT_ACK, PacketType.CLIENT_ROLLBACK):
                self._pending = error
                return Step()
            return Step(failure(error.code, str(error)))

    def done(self, wanted: Wanted, answer: bytes = b"") -> bytes:
        """Return the answer of a request that was carried out."""
        if wanted.action in (Action.SUBSCRIBE, Action.UNSUBSCRIBE):
            return success()
        return answer

    def failed(self, wanted: Wanted, error: CanalError) -> bytes:
        """Return the answer of a request that was refused; the next one's where it has none."""
        if wanted.action in (Action.ACKNOWLEDGE, Action.ROLL_BACK):
            self._pending = error
            return b""
        return failure(error.code, str(error))

    def _admit(self, packet: Packet) -> Step:
        if packet.kind != PacketType.AUTHENTICATION:
            return Step(failure(BAD_REQUEST, f"{_unsupported(packet)} before a login"), closes=True)
        auth = read_auth(packet.body)
        if not self._login.admits(auth.username, auth.password, self._seeds):
            text = f"auth failed for user:{auth.username[:MOST_NAME_CHARS]}"
            text += self._login.advice(auth.password)
            return Step(failure(BAD_REQUEST, text), closes=True)
        self.is_admitted, self.user = True, auth.username[:MOST_NAME_CHARS]
        given_s = [ms / 1000 for ms in (auth.read_timeout_ms, auth.write_timeout_ms) if ms > 0]
        self.idle_s = min([self.idle_s, *given_s])
        if not auth.destination or not auth.client_id:
            return Step(success())
        request = ClientRequest(auth.destination, auth.client_id, filter_text=auth.filter_text)
        try:
            return Step(wanted=_subscription(request))
        except CanalError as error:
            return Step(failure(error.code, str(error)))

    def _take(self, packet: Packet) -> Step:
        kind = packet.kind
        if kind in (PacketType.CLIENT_ACK, PacketType.CLIENT_ROLLBACK):
            return _settling(kind, read_request(packet.body))
        pending, self._pending = self._pending, None
        if pending is not None:
            raise pending
        if kind == PacketType.SUBSCRIPTION:
            return Step(wanted=_subscription(read_request(packet.body)))
        if kind == PacketType.UNSUBSCRIPTION:
            request = read_request(packet.body)
            return Step(wanted=Wanted(Action.UNSUBSCRIBE, *_identity(request)))
        if kind == PacketType.GET:
            return Step(wanted=_get(read_request(packet.body)))
        raise CanalError(BAD_REQUEST, _unsupported(packet))


def _settling(kind: int, request: ClientRequest) -> Step:
    """Return the step of an acknowledgement or a rollback."""
    if kind == PacketType.CLIENT_ROLLBACK:
        identity = _identity(request)
        return Step(wanted=Wanted(Action.ROLL_BACK, *identity, batch_id=request.number))
    if request.number == NO_BATCH:
        return Step()  # of an empty answer
    identity = _identity(request)
    if request.number == 0:
        raise CanalError(NO_BATCH_ID, "batchId should assign value. A batch has no id 0")
    return Step(wanted=Wanted(Action.ACKNOWLEDGE, *identity, batch_id=request.number))


def _subscription(request: ClientRequest) -> Wanted:
    return Wanted(Action.SUBSCRIBE, *_identity(request), filter_text=request.filter_text)


def _get(request: ClientRequest) -> Wanted:
    size = request.number if request.number > 0 else _DEFAULT_SIZE
    wait_s = wait_of(request.timeout, request.unit)
    return Wanted(Action.GET, *_identity(request), size=size, wait_s=wait_s)


def wait_of(timeout: int, unit: int) -> float | None:
    """Return how long a request may wait, in seconds; None = until its batch is full.

    A client that leaves the timeout out sends 0.
    """
    if timeout <= _AT_ONCE:
        return 0.0
    return timeout * _UNITS_S.get(unit, _UNITS_S[_MS]) if timeout else None


def _identity(request: ClientRequest) -> tuple[str, int]:
    """Return destination and client id; raises CanalError if one is missing or is none."""
    destination, client_id = request.destination, request.client_id
    if not destination or not client_id:
        raise CanalError(
            NO_NAME, "destination or clientId is null. A subscription names both, such as 1001"
        )
    if len(destination) > MOST_NAME_CHARS:
        raise CanalError(BAD_REQUEST, f"destination:{destination[:50]}… should start first")
    if not _CLIENT_ID.fullmatch(client_id) or int(client_id) not in _SHORT:
        raise CanalError(
            BAD_REQUEST,
            f"clientId {client_id[:50]!r} is no number from {_SHORT.start} to {_SHORT.stop - 1}",
        )
    return destination, int(client_id)


def _unsupported(packet: Packet) -> str:
    known = packet.kind in list(PacketType)
    name = PacketType(packet.kind).name if known else str(packet.kind)
    return f"packet type: {name} is NOT supported!"
