"""An error as HTTP headers: servers write them, clients raise the same class again. Pure.

A Databus client tells errors apart by a class name in a header, never by the status or by the
text: LinkedIn's servers answer 500 whatever happened. Facts that a client acts on have headers
of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from databus.schemas.errors import (
    BootstrapTooOldError,
    BootstrapTooYoungError,
    DatabusError,
    ForbiddenError,
    InvalidParameterError,
    OtherLogError,
    RequestError,
    ScnNotFoundError,
    ServerError,
    TooSlowError,
    UnauthorizedError,
    UnknownCommandError,
    UnknownSourceError,
)
from databus.schemas.protocol import Header
from databus.schemas.scn import MAX_SCN

# The refusals by their names on the wire. All other names say that the server itself is in
# trouble; whatever they are, a client raises ServerError with the server's text.
REFUSALS: Mapping[str, type[RequestError]] = {
    kind.wire_name: kind
    for kind in (
        BootstrapTooOldError,
        BootstrapTooYoungError,
        ForbiddenError,
        InvalidParameterError,
        OtherLogError,
        ScnNotFoundError,
        TooSlowError,
        UnauthorizedError,
        UnknownCommandError,
        UnknownSourceError,
    )
}

UNKNOWN_SCN = -1  # the server did not say which SCN is its oldest
_MAX_TEXT_CHARS = 1000
_NOT_IN_A_HEADER = re.compile(r"[^\x20-\x7e]+")


def wire_names(error: DatabusError) -> tuple[str, str]:
    """Return the names that an error and its cause go under; no cause is an empty name."""
    if isinstance(error, ScnNotFoundError):
        # A Databus client looks for this one only among the causes.
        return DatabusError.wire_name, error.wire_name
    return error.wire_name, ""


def error_headers(error: DatabusError) -> dict[str, str]:
    """Return the headers of the answer to a request that ends in this error."""
    name, cause = wire_names(error)
    text = _header_text(str(error))
    headers = {Header.ERROR: name, Header.ERROR_MESSAGE: text}
    if cause:
        headers |= {Header.ERROR_CAUSE: cause, Header.ERROR_CAUSE_MESSAGE: text}
    if isinstance(error, ScnNotFoundError):
        if error.oldest != UNKNOWN_SCN:
            headers[Header.OLDEST_SCN] = str(error.oldest)
        if error.advice:
            headers[Header.ADVICE] = _header_text(error.advice)
    return headers


def read_error(
    server: str, scn: int, status: int, headers: Mapping[str, str]
) -> DatabusError | None:
    """Return the error that an answer is, or None for a good one.

    Header names are lower case. `scn` is the one that was asked for.
    """
    sent = [headers[header] for header in (Header.ERROR, Header.ERROR_CAUSE) if headers.get(header)]
    if status == 200 and not sent:
        return None
    text = headers.get(Header.ERROR_CAUSE_MESSAGE) or headers.get(Header.ERROR_MESSAGE) or ""
    # The cause says more than the error around it. Java's names have their package in front.
    kinds = [REFUSALS.get(name.rpartition(".")[2]) for name in reversed(sent)]
    kind = next(filter(None, kinds), None)
    if kind is None and status == UnknownCommandError.status and not sent:
        kind = UnknownCommandError  # an HTTP server's own answer to a path that it does not have
    if kind is ScnNotFoundError:
        return ScnNotFoundError(scn, _read_oldest(headers), headers.get(Header.ADVICE, ""))
    described = " ".join(part for part in (f"status {status}", " caused by ".join(sent)) if part)
    if kind is not None:
        return kind.answered(server, text or described)
    return ServerError(server, f"{described} {text}".rstrip())


def _read_oldest(headers: Mapping[str, str]) -> int:
    text = headers.get(Header.OLDEST_SCN, "")
    is_scn = text.isascii() and text.isdecimal() and int(text) <= MAX_SCN
    return int(text) if is_scn else UNKNOWN_SCN


def _header_text(text: str) -> str:
    return _NOT_IN_A_HEADER.sub(" ", text)[:_MAX_TEXT_CHARS]
