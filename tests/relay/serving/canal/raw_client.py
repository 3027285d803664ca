"""A client of Canal of our own, which sends what it is told to and shows what comes."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

from databus.relay.serving.canal.protocol.packets import PacketType
from databus.relay.serving.canal.protocol.passwords import scramble
from databus.relay.serving.protobuf import (
    Value,
    bytes_field,
    number_field,
    read_fields,
    signed,
    text_field,
)
from tests import PATIENCE_S


class RefusedError(Exception):
    """The server answered with an error."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class SeenEntry(NamedTuple):
    """An entry: B, E, or the kind, table and number of rows of one with rows or a statement."""

    kind: str
    table: str = ""
    rows: int = 0
    sql: str = ""
    keys: tuple[str, ...] = ()  # values of the first column, after the change if there is one


class Batch(NamedTuple):
    """The answer of a GET."""

    id: int
    entries: list[SeenEntry]

    @property
    def keys(self) -> list[int]:
        """The keys of all rows."""
        return [int(key) for entry in self.entries for key in entry.keys]


class RawClient:
    """A connection; each method sends one frame."""

    def __init__(self, address: str, destination: str = "example", client_id: str = "1001") -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        self.destination, self.client_id = destination, client_id
        try:
            kind, body = self.answer()
        except OSError:
            self.close()
            raise
        assert kind == PacketType.HANDSHAKE
        seeds = fields_of(body)[2]
        assert isinstance(seeds, bytes)
        self.seeds = seeds

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, kind: int, body: bytes = b"") -> None:
        packet = number_field(3, kind) + bytes_field(5, body)
        self.socket.sendall(struct.pack(">i", len(packet)) + packet)

    def answer(self) -> tuple[int, bytes]:
        """Return type and body of the next frame."""
        (length,) = struct.unpack(">i", self._read(4))
        fields = fields_of(self._read(length))
        body = fields.get(5, b"")
        assert fields[2] == 1
        assert isinstance(body, bytes)
        kind = fields[3]
        assert isinstance(kind, int)
        return kind, body

    def is_closed(self) -> bool:
        """Wait until the server has closed the connection; what came before is dropped."""
        try:
            while self.socket.recv(4096):
                pass
        except ConnectionResetError:
            pass
        return True

    def login(self, user: str = "", password: bytes | None = None, plain: bytes = b"") -> RawClient:
        token = plain if password is None else scramble(password, self.seeds)
        self.send(PacketType.AUTHENTICATION, text_field(1, user) + bytes_field(2, token))
        self.acked()
        return self

    def identity(self) -> bytes:
        return text_field(1, self.destination) + text_field(2, self.client_id)

    def subscribe(self, filter_text: str = "") -> RawClient:
        self.send(PacketType.SUBSCRIPTION, self.identity() + text_field(7, filter_text))
        self.acked()
        return self

    def unsubscribe(self) -> None:
        self.send(PacketType.UNSUBSCRIPTION, self.identity())
        self.acked()

    def acked(self) -> None:
        kind, body = self.answer()
        assert kind == PacketType.ACK, kind
        raise_failure(body)

    def ask(self, size: int = 1000, timeout: int = -1, unit: int = -1) -> None:
        body = self.identity() + number_field(3, size)
        self.send(PacketType.GET, body + number_field(4, timeout) + number_field(5, unit))

    def batch(self) -> Batch:
        """Return the answer of a GET; raises RefusedError."""
        kind, body = self.answer()
        if kind == PacketType.ACK:
            raise_failure(body)
        assert kind == PacketType.MESSAGES
        batch_id, entries = 0, []
        for field, value in read_fields(body):
            if isinstance(value, int):
                batch_id = signed(value)
            else:
                assert field == 2
                entries.append(seen(value))
        return Batch(batch_id, entries)

    def get(self, size: int = 1000, timeout: int = -1, unit: int = -1) -> Batch:
        self.ask(size, timeout, unit)
        return self.batch()

    def ack(self, batch_id: int) -> None:
        self.send(PacketType.CLIENT_ACK, self.identity() + number_field(3, batch_id))

    def roll_back(self, batch_id: int = 0) -> None:
        self.send(PacketType.CLIENT_ROLLBACK, self.identity() + number_field(3, batch_id))

    def _read(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            data = self.socket.recv(size - len(found))
            if not data:
                raise ConnectionError("the server has closed the connection")
            found += data
        return bytes(found)


def raise_failure(body: bytes) -> None:
    fields = fields_of(body)
    if fields.get(1, 0):
        code, text = fields[1], fields[2]
        assert isinstance(code, int)
        assert isinstance(text, bytes)
        raise RefusedError(code, text.decode())


def fields_of(data: bytes) -> dict[int, Value]:
    return dict(read_fields(data))


def seen(data: bytes) -> SeenEntry:
    """Return an entry as a test looks at it."""
    entry = fields_of(data)
    header, value = entry[1], entry[3]
    assert isinstance(header, bytes)
    assert isinstance(value, bytes)
    if entry[2] != 2:
        return SeenEntry("B" if entry[2] == 1 else "E")
    texts = fields_of(header)
    table = f"{_text(texts[8])}.{_text(texts[9])}"
    change = list(read_fields(value))
    named = dict(change)
    if 11 in named:
        return SeenEntry("D" if named.get(10) else "S", table, sql=_text(named[11]))
    kinds = {1: "I", 2: "U", 3: "D"}
    event_type = named[2]
    assert isinstance(event_type, int)
    rows = [one for field, one in change if field == 12 and isinstance(one, bytes)]
    return SeenEntry(kinds[event_type], table, len(rows), keys=tuple(map(_key, rows)))


def _key(row: bytes) -> str:
    columns = [(field, column) for field, column in read_fields(row) if isinstance(column, bytes)]
    after = [column for field, column in columns if field == 2] or [one for _, one in columns]
    return _text(fields_of(after[0])[8])


def _text(value: Value) -> str:
    assert isinstance(value, bytes)
    return value.decode()
