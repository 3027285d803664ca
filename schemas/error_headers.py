"""An error as HTTP headers: servers write them, clients raise the same class again. Pure.

A Databus client tells errors apart by a class name in a header, never by the status or by the
text: LinkedIn's servers answer 500 whatever happened. It compares the full name of a Java class;
an error that LinkedIn does not have goes by its bare name. Facts that a client acts on have
headers of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote, unquote

from databus.schemas.errors import (
    BootstrapError,
    BootstrapTooOldError,
    BootstrapTooYoungError,
    DatabusError,
    ForbiddenError,
    InvalidParameterError,
    OtherLogError,
    PlaceNotFoundError,
    RequestError,
    ScnAheadError,
    ScnNotFoundError,
    ServerError,
    TableStoppedError,
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
        PlaceNotFoundError,
        ScnAheadError,
        ScnNotFoundError,
        TableStoppedError,
        TooSlowError,
        UnauthorizedError,
        UnknownCommandError,
        UnknownSourceError,
    )
}

_REQUEST_PACKAGE = "com.linkedin.databus2.core.container.request"
# The packages of LinkedIn's exceptions, by class name.
JAVA_PACKAGES: Mapping[str, str] = {
    "BootstrapDatabaseTooOldException": _REQUEST_PACKAGE,
    "BootstrapDatabaseTooYoungException": _REQUEST_PACKAGE,
    "BootstrapProcessingException": "com.linkedin.databus.bootstrap.api",
    "InvalidEventException": "com.linkedin.databus.core",
    "InvalidRequestParamValueException": _REQUEST_PACKAGE,
    "RequestProcessingException": _REQUEST_PACKAGE,
    "ScnNotFoundException": "com.linkedin.databus.core",
    "UnknownCommandException": _REQUEST_PACKAGE,
}

# LinkedIn's servers send these as the causes of a RequestProcessingException, and its older
# clients look for them nowhere else.
_CAUSES = (ScnNotFoundError, BootstrapTooOldError, BootstrapTooYoungError, BootstrapError)

UNKNOWN_SCN = -1  # the server did not say which SCN is its oldest
_MAX_TEXT_CHARS = 1000
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_NOT_IN_A_HEADER = re.compile(r"[^\x20-\x7e]+")


def wire_names(error: DatabusError) -> tuple[str, str]:
    """Return the names of an error and of its cause on the wire; without a cause it is empty."""
    name = full_name(error.wire_name)
    return (full_name(DatabusError.wire_name), name) if isinstance(error, _CAUSES) else (name, "")


def full_name(class_name: str) -> str:
    """Return the name of an exception with its Java package, if LinkedIn has it."""
    package = JAVA_PACKAGES.get(class_name)
    return f"{package}.{class_name}" if package else class_name


def error_headers(error: DatabusError) -> dict[str, str]:
    """Return the headers of the answer to a request that ends in this error."""
    name, cause = wire_names(error)
    text = _header_text(str(error))
    headers = {Header.ERROR: name, Header.ERROR_MESSAGE: text}
    if cause:
        headers |= {Header.ERROR_CAUSE: cause, Header.ERROR_CAUSE_MESSAGE: text}
    if _NOT_IN_A_HEADER.search(str(error).replace("…", "...")):
        headers[Header.ERROR_TEXT] = _coded(str(error))
    if isinstance(error, ScnNotFoundError):
        if error.oldest != UNKNOWN_SCN:
            headers[Header.OLDEST_SCN] = str(error.oldest)
        if error.advice:
            headers[Header.ADVICE] = _header_text(error.advice)
    if isinstance(error, TableStoppedError):
        headers[Header.STOPPED] = _coded(error.source)
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
    text = unquote(headers.get(Header.ERROR_TEXT, "")) or (
        headers.get(Header.ERROR_CAUSE_MESSAGE) or headers.get(Header.ERROR_MESSAGE) or ""
    )
    # The cause says more than the error around it. Older relays of ours send bare names.
    kinds = [REFUSALS.get(_class_name(name)) for name in reversed(sent)]
    kind = next(filter(None, kinds), None)
    if kind is None and status == UnknownCommandError.status and not sent:
        kind = UnknownCommandError  # an HTTP server's own answer to a path that it does not have
    if kind is ScnNotFoundError:
        return ScnNotFoundError(scn, _read_oldest(headers), headers.get(Header.ADVICE, ""))
    names = " caused by ".join(map(_shown_name, sent))
    described = " ".join(part for part in (f"status {status}", names) if part)
    if kind is not None:
        refusal = kind.answered(server, text or described)
        if isinstance(refusal, TableStoppedError):
            refusal.source = unquote(headers.get(Header.STOPPED, ""))
        return refusal
    return ServerError(server, f"{described} {text}".rstrip())


def _class_name(full: str) -> str:
    return full.rpartition(".")[2]


def _shown_name(sent: str) -> str:
    """Return a name for people: LinkedIn's without their package."""
    name = _class_name(sent)
    return name if sent == full_name(name) else sent


def _read_oldest(headers: Mapping[str, str]) -> int:
    text = headers.get(Header.OLDEST_SCN, "")
    is_scn = text.isascii() and text.isdecimal() and int(text) <= MAX_SCN
    return int(text) if is_scn else UNKNOWN_SCN


def _coded(text: str) -> str:
    return quote(text[:_MAX_TEXT_CHARS], safe=_PRINTABLE)


def _header_text(text: str) -> str:
    return _NOT_IN_A_HEADER.sub(" ", text.replace("…", "..."))[:_MAX_TEXT_CHARS]
