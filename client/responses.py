"""What a server's HTTP answers mean: JSON bodies and headers. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from databus.client.subscription import RegisteredSchema
from databus.schemas.errors import ServerError
from databus.schemas.scn import MAX_SCN

PENDING_EVENT_BYTES = "x-dbus-pending-event-size"
RESUME = "x-databus-resume"
AHEAD = "x-databus-ahead"
PHASE_COMPLETED = "phasecompleted"
STORE_ID = "x-databus-store"
MARK = "x-databus-mark"
# Of a request: whose it is. As in databus/daemon/client_report.py, which is slow to import.
CLIENT_ID = "x-databus-client"


class StreamHeaders(NamedTuple):
    """What the headers of a `/stream` answer say.

    `resume` is where the next request goes on, counted in unfiltered events:
    (SCN of the window, offset; -1 = all of it was sent).
    """

    resume: tuple[int, int] | None = None
    pending_event_bytes: int | None = None
    is_ahead: bool = False


class PageHeaders(NamedTuple):
    """What the headers of a `/bootstrap` answer say."""

    is_completed: bool = False  # the phase is over with this page
    pending_event_bytes: int | None = None


def read_scn(server: str, path: str, body: bytes) -> int:
    """Return the SCN of an answer to `/startSCN` or `/targetSCN`; raises ServerError."""
    try:
        value = json.loads(body)
        scn = int(value) if isinstance(value, str) else _number(value)
        if not 0 <= scn <= MAX_SCN:
            raise ValueError(f"{scn} is no SCN")
    except (ValueError, TypeError, RecursionError) as error:
        raise ServerError(server, f"the answer to {path} makes no sense: {error!r}") from error
    return scn


def read_mark(server: str, headers: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the window (SCN, timestamp) that tells the server's log; raises ServerError."""
    text = headers.get(MARK)
    if text is None:
        return None
    scn, _, ts_ns = text.partition(",")
    if not (scn.isdecimal() and ts_ns.isdecimal() and max(int(scn), int(ts_ns)) <= MAX_SCN):
        raise ServerError(server, f"header {MARK} of /targetSCN makes no sense: {text!r}")
    return int(scn), int(ts_ns)


def read_page_headers(server: str, headers: Mapping[str, str]) -> PageHeaders:
    """Return what the headers of a `/bootstrap` answer say; raises ServerError."""
    pending = headers.get(PENDING_EVENT_BYTES)
    try:
        pending_bytes = None if pending is None else int(pending)
    except ValueError as error:
        raise ServerError(server, f"a header of /bootstrap makes no sense: {error}") from error
    return PageHeaders(headers.get(PHASE_COMPLETED, "").upper() == "TRUE", pending_bytes)


def read_sources(server: str, body: bytes) -> dict[str, int]:
    """Return name → id of the answer to `/sources`; raises ServerError."""
    try:
        return {_text(item["name"]): _number(item["id"]) for item in _items(body)}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ServerError(server, f"the answer to /sources makes no sense: {error!r}") from error


def read_schemas(server: str, body: bytes) -> tuple[RegisteredSchema, ...]:
    """Return the schemas of the answer to `/register`, any version; raises ServerError."""
    try:
        return tuple(
            RegisteredSchema(_number(i["id"]), _number(i["version"]), _text(i["schema"]))
            for i in _items(body)
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ServerError(server, f"the answer to /register makes no sense: {error!r}") from error


def read_stream_headers(server: str, headers: Mapping[str, str]) -> StreamHeaders:
    """Return what the headers of a `/stream` answer say; raises ServerError."""
    try:
        resume = None
        if RESUME in headers:
            scn, offset = headers[RESUME].split(",")
            resume = (int(scn), int(offset))
            if not (-1 <= resume[0] <= MAX_SCN and resume[1] >= -1):
                raise ValueError(f"{RESUME}: {headers[RESUME]} is no place in a stream")
        pending = headers.get(PENDING_EVENT_BYTES)
        return StreamHeaders(
            resume,
            None if pending is None else int(pending),
            headers.get(AHEAD, "").lower() == "true",
        )
    except ValueError as error:
        raise ServerError(server, f"a header of /stream makes no sense: {error}") from error


def _items(body: bytes) -> list[dict[str, Any]]:
    value = json.loads(body)
    if isinstance(value, dict):  # register, version 4
        value = value["sourceSchemas"]
    if not isinstance(value, list):
        raise TypeError(f"a {type(value).__name__} where a list was due")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} where a text was due")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} where a whole number was due")
    return value
