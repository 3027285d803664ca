"""Parses the HTTP answers of servers: JSON bodies and headers. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from databus.client.subscription import RegisteredSchema
from databus.schemas.checkpoint import LogWindow
from databus.schemas.errors import ServerError
from databus.schemas.protocol import Header
from databus.schemas.scn import MAX_SCN


class StreamHeaders(NamedTuple):
    """The headers of a `/stream` answer.

    `resume` is where the next request continues, counted in unfiltered events: (SCN of the
    window, offset; -1 = the whole window was sent). `log_window` is a window with rows before it,
    of any source, by which the log is recognised.
    """

    resume: tuple[int, int] | None = None
    pending_event_bytes: int | None = None
    is_ahead: bool = False
    log_window: LogWindow | None = None


class PageHeaders(NamedTuple):
    """The headers of a `/bootstrap` answer."""

    is_completed: bool = False  # this page is the last one of its phase
    pending_event_bytes: int | None = None


def read_scn(server: str, path: str, body: bytes) -> int:
    """Return the SCN in an answer to `/startSCN` or `/targetSCN`; raise ServerError."""
    try:
        value = json.loads(body)
        # Some servers send the SCN as a string.
        return _scn(int(value) if isinstance(value, str) else _number(value))
    except (ValueError, TypeError, RecursionError) as error:
        raise ServerError(server, f"the answer to {path} is malformed: {error!r}") from error


def read_mark(server: str, headers: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the mark of the server's log, a window (SCN, timestamp); raise ServerError."""
    text = headers.get(Header.MARK)
    try:
        return None if text is None else mark_of(text)
    except ValueError as error:
        raise ServerError(server, f"header {Header.MARK} is malformed: {text!r}") from error


def read_log_window(server: str, headers: Mapping[str, str]) -> LogWindow | None:
    """Return the newest window with rows before the end of an answer; raise ServerError.

    A relay of an earlier version names no source.
    """
    text = headers.get(Header.LOG_WINDOW)
    if text is None:
        mark = read_mark(server, headers)
        return None if mark is None else (*mark, "")
    window, _, source = text.rpartition(",")
    try:
        if not source:
            raise ValueError(f"{text!r} names no source")
        return (*mark_of(window), unquote(source))
    except ValueError as error:
        raise ServerError(server, f"header {Header.LOG_WINDOW} is malformed: {text!r}") from error


def mark_of(text: str) -> tuple[int, int]:
    """Return the window of a text `<SCN>,<timestamp in ns>`; raise ValueError."""
    scn, _, ts_ns = text.partition(",")
    if not all(part.isdecimal() and int(part) <= MAX_SCN for part in (scn, ts_ns)):
        raise ValueError(f"{text!r} is not <SCN>,<timestamp in ns>")
    return int(scn), int(ts_ns)


def read_page_headers(server: str, headers: Mapping[str, str]) -> PageHeaders:
    """Return the headers of a `/bootstrap` answer; raise ServerError."""
    pending = headers.get(Header.PENDING_EVENT_BYTES)
    try:
        pending_bytes = None if pending is None else int(pending)
    except ValueError as error:
        raise ServerError(server, f"a header of /bootstrap is malformed: {error}") from error
    is_completed = headers.get(Header.PHASE_COMPLETED.lower(), "").upper() == "TRUE"
    return PageHeaders(is_completed, pending_bytes)


def read_sources(server: str, body: bytes) -> dict[str, int]:
    """Return name → id from the answer to `/sources`; raise ServerError."""
    try:
        return {_text(item["name"]): _number(item["id"]) for item in _items(body)}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ServerError(server, f"the answer to /sources is malformed: {error!r}") from error


def read_schemas(server: str, body: bytes) -> tuple[RegisteredSchema, ...]:
    """Return the schemas in the answer to `/register`, of any version; raise ServerError."""
    try:
        return tuple(
            RegisteredSchema(_number(i["id"]), _number(i["version"]), _text(i["schema"]))
            for i in _items(body)
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ServerError(server, f"the answer to /register is malformed: {error!r}") from error


def read_position(server: str, body: bytes) -> int:
    """Return the SCN of a named place; raise ServerError."""
    try:
        return _scn(int(_text(json.loads(body)["scn"])))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ServerError(server, f"the answer to /position is malformed: {error!r}") from error


def read_stream_headers(server: str, headers: Mapping[str, str]) -> StreamHeaders:
    """Return the headers of a `/stream` answer; raise ServerError."""
    try:
        resume = None
        # Absent in answers of relays of other projects.
        if Header.RESUME in headers:
            scn, offset = headers[Header.RESUME].split(",")
            resume = (int(scn), int(offset))
            if not (-1 <= resume[0] <= MAX_SCN and resume[1] >= -1):
                raise ValueError(f"{Header.RESUME}: {scn},{offset} is not a position in a stream")
        pending = headers.get(Header.PENDING_EVENT_BYTES)
        return StreamHeaders(
            resume,
            None if pending is None else int(pending),
            headers.get(Header.AHEAD, "").lower() == "true",
            read_log_window(server, headers),
        )
    except ValueError as error:
        raise ServerError(server, f"a header of /stream is malformed: {error}") from error


def _scn(number: int) -> int:
    if not 0 <= number <= MAX_SCN:
        raise ValueError(f"{number} is not an SCN")
    return number


def _items(body: bytes) -> list[dict[str, Any]]:
    value = json.loads(body)
    if isinstance(value, dict):  # register, version 4
        value = value["sourceSchemas"]
    if not isinstance(value, list):
        raise TypeError(f"a {type(value).__name__} instead of a list")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} instead of a string")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} instead of an integer")
    return value
