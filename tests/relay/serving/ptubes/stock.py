"""What a stock client of Ptubes sends and reads: no `Host`, one request at a time."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from databus.relay.serving.protobuf import read_fields, signed
from databus.relay.serving.ptubes.door import PtubesDoor
from tests import PATIENCE_S
from tests.relay.fakes import ServedRelay

READER = "reader"
TABLES = ("shop.person", "shop.orders")
NO_CHECKPOINT = {"checkpointMode": "EARLIEST"}


def serve_ptubes(folder: Path, tables: Sequence[str] = (), **changes: Any) -> ServedRelay:
    """Return a relay with a reader task of its physical source `shop`."""
    ptubes = changes.pop("ptubes", {})
    task = {"name": READER, "physical_source": "shop", "tables": tables}
    task |= ptubes.pop("task", {})
    found = {"port": 0, "monitor_port": 0, "time_zone": "UTC", "reader_tasks": [task]} | ptubes
    return ServedRelay(folder, ptubes=found, **changes)


def door_of(served: ServedRelay) -> PtubesDoor:
    (door,) = served.service.front_doors
    assert isinstance(door, PtubesDoor)
    return door


class Sent(NamedTuple):
    """One event as a client gets it."""

    partition: int
    event_type: int
    table: str
    checkpoint: dict[str, Any]
    before: dict[str, str | None]
    after: dict[str, str | None]
    sql: str
    time_ms: int
    is_ddl: bool


class Envelope(NamedTuple):
    """An answer to a fetch."""

    events: list[Sent]
    latest: dict[str, Any]
    error_code: int
    error: str
    total: int


def fields_of(data: bytes) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for number, value in read_fields(data):
        found.setdefault(number, []).append(value)
    return found


def one(fields: dict[int, list[Any]], number: int, default: Any = 0) -> Any:
    return fields.get(number, [default])[0]


def read_checkpoint(data: bytes) -> dict[str, Any]:
    """Return a checkpoint as the client stores it, JSON member by member."""
    fields = fields_of(data)
    return {
        "checkpointMode": "NORMAL",
        "uuid": one(fields, 1, b"").decode(),
        "transactionId": one(fields, 2),
        "eventIndex": signed(one(fields, 3)),
        "serverId": signed(one(fields, 4), 32),
        "binlogFile": one(fields, 5),
        "binlogOffset": one(fields, 6),
        "timestamp": one(fields, 7),
    }


def read_columns(entries: list[bytes]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for entry in entries:
        column = fields_of(one(fields_of(entry), 2))
        value = one(column, 8, b"").decode()
        found[one(column, 3).decode()] = None if one(column, 6) else value
    return found


def read_envelope(data: bytes) -> Envelope:
    """Read an answer as the stock client does."""
    fields = fields_of(data)
    assert one(fields, 2) == 1, "any other type of message is dropped"
    events = []
    for entry in fields_of(one(fields, 3, b"")).get(1, []):
        partition, message = one(fields_of(entry), 1), fields_of(one(fields_of(entry), 2))
        assert one(message, 1) == len(message[3])
        assert one(message, 2) == sum(map(len, message[3]))
        events += [_read_event(partition, one_event) for one_event in message[3]]
    latest = read_checkpoint(one(fields, 8)) if 8 in fields else {}
    assert not events or latest["timestamp"] > 0
    code, text = signed(one(fields, 4), 32), one(fields, 5, b"").decode()
    return Envelope(events, latest, code, text, one(fields, 6))


def _read_event(partition: int, data: bytes) -> Sent:
    event = fields_of(data)
    header, row = fields_of(one(event, 1)), fields_of(one(event, 4, b""))
    return Sent(
        partition,
        one(event, 3),
        one(header, 6).decode(),
        read_checkpoint(one(header, 2)),
        read_columns(row.get(1, [])),
        read_columns(row.get(2, [])),
        one(event, 7, b"").decode(),
        one(header, 4),
        bool(one(event, 2)),
    )


class StockClient:
    """One connection."""

    def __init__(self, served: ServedRelay | int, port: int = 0) -> None:
        """Connect to a relay in this process, or to a port."""
        number = served if isinstance(served, int) else door_of(served).ports[port]
        self.socket = socket.create_connection(("127.0.0.1", number), timeout=PATIENCE_S)
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> StockClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def send(self, path: str, body: Any = b"", *headers: str) -> None:
        """Send a request with the one header that the stock client sends."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = [f"POST {path} HTTP/1.1", f"content-length: {len(data)}", *headers]
        self.socket.sendall("\r\n".join([*head, "", ""]).encode() + data)

    def answer(self) -> bytes:
        """Return the next answer's body; nothing when the connection is closed."""
        status = self._file.readline()
        if not status:
            raise EOFError
        self.status = status.decode().split(" ", 1)[1].strip()
        self.headers = {}
        while line := self._file.readline().strip():
            name, _, value = line.decode("latin-1").partition(":")
            self.headers[name.lower()] = value.strip()
        assert "content-encoding" not in self.headers
        return self._file.read(int(self.headers["content-length"]))

    def ask(self, path: str, body: Any = b"", *headers: str) -> bytes:
        self.send(path, body, *headers)
        return self.answer()

    def is_closed(self) -> bool:
        try:
            return self._file.read(1) == b""
        except ConnectionResetError:
            return True

    def subscribe(self, **changes: Any) -> str:
        return self.ask("/v1/subscribe", subscription(**changes)).decode()

    def server_info(self, **changes: Any) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ask("/v1/getServerInfo", subscription(**changes)))
        return found

    def fetch(self, batch: int = 1000, wait_ms: int = 50, size: int = 1_000_000) -> Envelope:
        body = {"batchSize": batch, "timeoutMs": wait_ms, "maxByteSize": size}
        return read_envelope(self.ask("/v1/fetchMessages", body))

    def fetch_rows(self, count: int) -> list[Sent]:
        """Fetch until so many rows are there; heartbeats are not counted."""
        found: list[Sent] = []
        for _ in range(200):
            if len(found) >= count:
                return found
            envelope = self.fetch(wait_ms=200)
            assert not envelope.error, envelope.error
            found += [event for event in envelope.events if event.event_type != 17]
        raise AssertionError(f"{len(found)} of {count} rows came")


def subscription(
    *,
    checkpoint: dict[str, Any] | None = None,
    tables: Sequence[str] = TABLES,
    partitions: int = 11,
    owned: Sequence[int] | None = None,
    task: str = "task",
    reader: str = READER,
    ddl: bool = False,
    commits: bool = False,
) -> dict[str, Any]:
    """Return the body of a subscription, with every member that the stock client sends."""
    databases: dict[str, list[str]] = {}
    for table in tables:
        databases.setdefault(table.partition(".")[0], []).append(table.partition(".")[2])
    own = list(range(partitions)) if owned is None else list(owned)
    return {
        "partitionClusterInfo": {"partitionTotal": partitions, "partitionSet": own},
        "serviceGroupInfo": {
            "taskName": task,
            "serviceGroupName": reader,
            "databaseInfoSet": [
                {"databaseName": name, "tableNames": found} for name, found in databases.items()
            ],
        },
        "buffaloCheckpoint": NO_CHECKPOINT if checkpoint is None else checkpoint,
        "needEndTransaction": commits,
        "needDDL": ddl,
    }
