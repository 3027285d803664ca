"""What another relay says of a physical source: its sources, schemas, epochs and state. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from databus.relay.sources.epochs import Epoch, parse_epoch
from databus.relay.sources.source import SourceSchema
from databus.schemas.avro_rows import schema_id
from databus.schemas.protocol import Header


class UpstreamState(NamedTuple):
    """The state of the other relay's own capture, and which SCNs it holds; -1 = unknown.

    What it holds comes after `after_scn`. `newest_at` is when its newest window was committed, in
    seconds since 1970; `behind_s` and `behind_bytes` are how far its own log is ahead of it, None
    if that is not known. `relays` are the ids of that relay and of those through which it reads.
    """

    state: str
    is_connected: bool
    problem: str
    after_scn: int
    newest_scn: int
    newest_at: float = 0.0
    behind_s: float | None = None
    behind_bytes: int | None = None
    warning: str = ""
    relays: tuple[str, ...] = ()


class StreamAnswer(NamedTuple):
    """An answer to `/stream`; `resume` is where the next request goes on, as it was told."""

    body: bytes
    resume: tuple[int, int] | None
    pending_event_bytes: int | None
    is_ahead: bool


def read_sources(value: Any, name: str) -> Mapping[str, int] | list[str]:
    """Return name → id of a physical source's sources, or the names of the physical sources.

    All these functions raise ValueError, KeyError or TypeError for an answer of another form.
    """
    for one in value:
        if one["name"] == name:
            return {str(source["name"]): int(source["id"]) for source in one["sources"]}
    return [str(one["name"]) for one in value]


def read_schemas(value: Any, name: str) -> list[SourceSchema]:
    """Return all versions of a physical source's schemas, those of one source in order."""
    return [
        SourceSchema(
            str(source["source"]),
            version["schemaText"],
            int(version["sinceScn"] or 0),
            schema_id(version["schemaText"]),
        )
        for source in value["sources"]
        if source["physicalSource"] == name
        for version in source["versions"]
    ]


def read_epochs(value: Any) -> tuple[Epoch, ...]:
    """Return a table of epochs."""
    return tuple(parse_epoch(one) for one in value["epochs"])


def read_state(value: Any) -> UpstreamState:
    """Return the state of a physical source."""
    ring, log, source_log = value["ring"], value["relayLog"], value["log"]
    held = [ring["prevScn"], ring["minScn"]]
    if log is not None and log["minScn"] is not None:
        held = [log["prevScn"], log["minScn"]]
    known = [int(scn) for scn in held if scn is not None]
    newest = ring["maxScn"]
    return UpstreamState(
        str(value["state"]),
        bool(value["isConnected"]),
        str(value["problem"]),
        known[0] if known else -1,
        -1 if newest is None else int(newest),
        float(ring["newestAt"] or 0.0),
        source_log["behindS"],
        source_log["behindBytes"],
        str(source_log["warning"]),
        tuple(map(str, value.get("relays", ()))),
    )


def read_stream(body: bytes, headers: Mapping[str, str]) -> StreamAnswer:
    """Return an answer to `/stream`, given its headers with names in lower case."""
    resume = None
    if Header.RESUME in headers:
        scn, offset = headers[Header.RESUME].split(",")
        resume = int(scn), int(offset)
    pending = headers.get(Header.PENDING_EVENT_BYTES)
    return StreamAnswer(
        body,
        resume,
        None if pending is None else int(pending),
        headers.get(Header.AHEAD, "") == "true",
    )
