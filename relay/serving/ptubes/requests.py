"""The bodies of Ptubes' requests, read and checked. Pure.

The clients' numbers and texts are believed only within limits; unknown members are ignored.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from databus.relay.serving.ptubes.places import BEFORE_ROWS, NO_UUID, Mode, PtubesCheckpoint
from databus.schemas.errors import RequestError

MOST_PARTITIONS = 1 << 15
MOST_TABLES = 10_000
MOST_EVENTS = 100_000
_MOST_TEXT = 500
_MOST_LONG = (1 << 63) - 1
MOST_TIME_MS = _MOST_LONG // 1_000_000  # commit times are kept in nanoseconds
_MOST_INT = (1 << 31) - 1
_CODEC = "PROTOCOL_BUFFER"
_SURROGATES = "\ud800", "\udfff"
# The numbers of a checkpoint: what stands for none, the least and the most.
_PLACE = {
    "serverId": (-1, -_MOST_INT - 1, (1 << 32) - 1),
    "binlogFile": (-1, -_MOST_INT - 1, _MOST_INT),
    "binlogOffset": (-1, -_MOST_LONG - 1, _MOST_LONG),
    "eventIndex": (BEFORE_ROWS, -_MOST_LONG - 1, _MOST_LONG),
    "timestamp": (-1, -_MOST_LONG - 1, MOST_TIME_MS),
    "transactionId": (0, -_MOST_LONG - 1, _MOST_LONG),
}
STRATEGIES = ("FREEZE", "TIMESTAMP", "BINLOG_POSITION")


class Subscription(NamedTuple):
    """What a client wants: `tables` are DATABASE.TABLE."""

    reader_task: str
    task: str
    tables: frozenset[str]
    partitions: int
    owned: frozenset[int]
    checkpoint: PtubesCheckpoint
    wants_commits: bool
    wants_ddl: bool


class Fetch(NamedTuple):
    """The limits of one answer."""

    events: int = 1000
    wait_ms: int = 50
    size_bytes: int = 1_000_000


class Adjustment(NamedTuple):
    """Where a reader task is to read its database again."""

    reader_task: str
    strategy: str
    timestamp_ms: int
    file: int
    offset: int


def parse_subscription(body: bytes) -> Subscription:
    """Return the subscription in a body of `getServerInfo` or `subscribe`; raise RequestError."""
    fields = _object(body)
    codec = fields.get("codec")
    if codec not in (None, "", _CODEC):
        raise RequestError(f"codec {codec!r} is not served, only {_CODEC}")
    cluster = _member(fields, "partitionClusterInfo")
    partitions = _number(cluster, "partitionTotal", 0, 1, MOST_PARTITIONS)
    group = _member(fields, "serviceGroupInfo")
    return Subscription(
        _text(group, "serviceGroupName"),
        _text(group, "taskName"),
        _tables(group),
        partitions,
        _owned(cluster, partitions),
        _checkpoint(fields.get("buffaloCheckpoint")),
        _flag(fields, "needEndTransaction"),
        _flag(fields, "needDDL"),
    )


def parse_fetch(body: bytes) -> Fetch:
    """Return the limits in a body of `fetchMessages`; raise RequestError."""
    fields = _object(body)
    return Fetch(
        min(_number(fields, "batchSize", 1000, 1, _MOST_LONG), MOST_EVENTS),
        _number(fields, "timeoutMs", 50, 0, _MOST_LONG),
        _number(fields, "maxByteSize", 1_000_000, 1, _MOST_LONG),
    )


def parse_adjustment(body: bytes) -> Adjustment:
    """Return the wish in a body of `adjustDumpPoint`; raise RequestError."""
    fields = _object(body)
    strategy = fields.get("strategy")
    if strategy not in STRATEGIES:
        raise RequestError(f"strategy is to be one of {', '.join(STRATEGIES)}")
    is_time, is_place = strategy == STRATEGIES[1], strategy == STRATEGIES[2]
    return Adjustment(
        _text(fields, "readerTask"),
        strategy,
        _number(fields, "timestamp", -1, 1 if is_time else -1, MOST_TIME_MS),
        _number(fields, "binlogNum", -1, 1 if is_place else -1, (1 << 23) - 1),
        _number(fields, "binlogOffset", -1, 0 if is_place else -1, (1 << 32) - 1),
    )


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError("the body is not JSON in UTF-8") from error
    if not isinstance(found, dict):
        raise RequestError("the body is not a JSON object")
    return found


def _member(fields: dict[str, Any], name: str) -> dict[str, Any]:
    found = fields.get(name)
    if not isinstance(found, dict):
        raise RequestError(f"{name} is to be an object")
    return found


def _text(fields: dict[str, Any], name: str) -> str:
    found = fields.get(name)
    if not isinstance(found, str) or not 0 < len(found) <= _MOST_TEXT:
        raise RequestError(f"{name} is to be a text of 1 to {_MOST_TEXT} characters")
    if any(_SURROGATES[0] <= c <= _SURROGATES[1] for c in found):
        # JSON can have half of a character; nobody who is shown the session could write it.
        raise RequestError(f"{name} is not Unicode text")
    return found


def _flag(fields: dict[str, Any], name: str) -> bool:
    found = fields.get(name)
    if found is not None and not isinstance(found, bool):
        raise RequestError(f"{name} is to be true or false")
    return found is not False  # a client that says nothing gets them


def _number(fields: dict[str, Any], name: str, default: int, least: int, most: int) -> int:
    found = fields.get(name, default)
    if isinstance(found, bool) or not isinstance(found, int) or not least <= found <= most:
        raise RequestError(f"{name} is to be a number from {least} to {most}")
    return found


def _tables(group: dict[str, Any]) -> frozenset[str]:
    databases = group.get("databaseInfoSet")
    names: set[str] = set()
    for one in databases if isinstance(databases, list) else ():
        tables = one.get("tableNames") if isinstance(one, dict) else None
        for table in tables if isinstance(tables, list) else (None,):
            if not isinstance(table, str):
                raise RequestError("databaseInfoSet is to be a list of databaseName and tableNames")
            names.add(f"{_text(one, 'databaseName')}.{table[:_MOST_TEXT]}")
        if len(names) > MOST_TABLES:
            raise RequestError(f"more than {MOST_TABLES} tables")
    if not names:
        raise RequestError("databaseInfoSet names no table")
    return frozenset(names)


def _owned(cluster: dict[str, Any], partitions: int) -> frozenset[int]:
    given = cluster.get("partitionSet") or []  # a client that has none yet sends []
    if not isinstance(given, list) or len(given) > MOST_PARTITIONS:
        raise RequestError("partitionSet is to be a list")
    for one in given:
        if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one < partitions:
            raise RequestError(f"partitionSet is to have numbers from 0 to {partitions - 1}")
    return frozenset(given)


def _checkpoint(fields: Any) -> PtubesCheckpoint:
    if fields is None:
        return PtubesCheckpoint()
    if not isinstance(fields, dict):
        raise RequestError("buffaloCheckpoint is to be an object")
    try:
        mode = Mode(fields.get("checkpointMode") or Mode.LATEST)
    except ValueError:
        raise RequestError(f"checkpointMode is to be one of {', '.join(Mode)}") from None
    numbers = {name: _place_number(fields, name, *limits) for name, limits in _PLACE.items()}
    uuid = fields.get("uuid")
    return PtubesCheckpoint(
        mode,
        numbers["serverId"],
        numbers["binlogFile"],
        numbers["binlogOffset"],
        numbers["eventIndex"],
        numbers["timestamp"],
        uuid if isinstance(uuid, str) and len(uuid) <= _MOST_TEXT else NO_UUID,
        numbers["transactionId"],
    )


def _place_number(fields: dict[str, Any], name: str, default: int, least: int, most: int) -> int:
    value = fields.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise RequestError(f"buffaloCheckpoint.{name} is to be a number from {least} to {most}")
    return value
