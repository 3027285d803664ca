"""What a server's HTTP answers mean: JSON bodies, headers, errors. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from databus.client.subscription import RegisteredSchema
from databus.schemas.errors import (
    DatabusError,
    InvalidParameterError,
    SchemaError,
    ScnNotFoundError,
    ServerError,
    UnknownSourceError,
)

ERROR = "x-dbus-error"
ERROR_MESSAGE = "x-dbus-error-message"
CAUSE = "x-dbus-error-cause"
CAUSE_MESSAGE = "x-dbus-error-cause-message"
PENDING_EVENT_BYTES = "x-dbus-pending-event-size"
RESUME = "x-databus-resume"
AHEAD = "x-databus-ahead"

UNKNOWN_OLDEST = -1  # the server did not say
_OLDEST = re.compile(r"oldest held is (\d+)")


class StreamHeaders(NamedTuple):
    """What the headers of a `/stream` answer say.

    `resume` is where the next request goes on, counted in unfiltered events:
    (SCN of the window, offset; -1 = all of it was sent).
    """

    resume: tuple[int, int] | None = None
    pending_event_bytes: int | None = None
    is_ahead: bool = False


def error_of(server: str, scn: int, status: int, headers: Mapping[str, str]) -> DatabusError | None:
    """Return the error that an answer is, or None; `scn` is the one asked for.

    The headers count, not the status: Databus answers 500 whatever the cause.
    """
    names = {headers.get(name, "").rpartition(".")[2] for name in (ERROR, CAUSE)} - {""}
    if status == 200 and not names:
        return None
    text = headers.get(CAUSE_MESSAGE) or headers.get(ERROR_MESSAGE) or ""
    if ScnNotFoundError.wire_name in names:
        oldest = _OLDEST.search(text)
        return ScnNotFoundError(scn, int(oldest[1]) if oldest else UNKNOWN_OLDEST)
    kinds = " caused by ".join(n for n in (headers.get(ERROR), headers.get(CAUSE)) if n)
    return ServerError(server, " ".join(t for t in (f"status {status}", kinds, text) if t))


def is_malformed(error: BaseException) -> bool:
    """Say whether the server takes what was asked for nonsense: asking again cannot help."""
    return isinstance(error, ServerError) and InvalidParameterError.wire_name in str(error)


def is_refusal(error: BaseException) -> bool:
    """Say whether asking again cannot help until somebody changes the server."""
    return isinstance(error, UnknownSourceError | SchemaError) or (
        isinstance(error, ServerError) and UnknownSourceError.wire_name in str(error)
    )


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
