"""Reads what a request says: its parameters, its access headers, its sender. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tornado.httputil import HTTPServerRequest

from databus import __version__
from databus.conf.settings import HttpSettings
from databus.daemon.access import AccessHeaders
from databus.schemas.errors import InvalidParameterError
from databus.schemas.protocol import Parameter

Request = HTTPServerRequest
SERVER = f"databus/{__version__}"  # the Server header, which names no components
# How the User-Agents of this project's clients begin.
OWN_AGENTS = ("databus/", "databus-spark/")
# Parameters that cost work by their length.
FILTERS = (Parameter.FILTERS, Parameter.FILTER, Parameter.SUBSCRIPTIONS)


def parameters_of(request: Request, limits: HttpSettings) -> dict[str, str]:
    """Return the parameters of query string and form body, the last of each name.

    Raises InvalidParameterError.
    """
    found = decode_parameters(request.arguments)
    most = limits.max_filter_bytes
    for name in FILTERS:
        if len(found.get(name, "").encode()) > most:
            rule = f"at most {most} bytes (http.max_filter_bytes)"
            raise InvalidParameterError(name, found[name], rule)
    return found


def event_parameters_of(request: Request, limits: HttpSettings) -> dict[str, str]:
    """Return the parameters of a command about events; raises InvalidParameterError.

    LinkedIn's client fails at a truncate, so they are sent only on request. This project's
    clients understand them, and the older ones do not ask.
    """
    found = parameters_of(request, limits)
    if is_own_client(request):
        found.setdefault(Parameter.TRUNCATE, "true")
    return found


def decode_parameters(arguments: Mapping[str, Sequence[bytes]]) -> dict[str, str]:
    """Return the last value of each name as text; raises InvalidParameterError."""
    try:
        return {name: values[-1].decode() for name, values in arguments.items() if values}
    except UnicodeDecodeError as error:
        raise InvalidParameterError("(some)", repr(error.object), "not UTF-8") from error


def access_headers_of(request: Request) -> AccessHeaders:
    """Return the headers that decide about access."""
    headers = request.headers
    return AccessHeaders(
        scheme=request.protocol,
        host=request.host.lower(),
        authorization=headers.get("Authorization"),
        origin=headers.get("Origin"),
    )


def is_own_client(request: Request) -> bool:
    """Return whether the sender is a client of this project."""
    return request.headers.get("User-Agent", "").startswith(OWN_AGENTS)


def versions_sent_on(request: Request) -> dict[int, int]:
    """Return the newest schema version, by src_id, that was sent on the request's connection.

    The dict lasts as long as the connection, and may be changed.
    """
    connection: Any = request.connection
    context = connection.context
    if not hasattr(context, "versions_sent"):
        context.versions_sent = {}
    found: dict[int, int] = context.versions_sent
    return found


def accepts_gzip(header: str) -> bool:
    """Return whether an Accept-Encoding header accepts gzip."""
    return _accepts(header, "gzip")


def accepts_zstd(header: str) -> bool:
    """Return whether an Accept-Encoding header accepts zstd."""
    return _accepts(header, "zstd")


def _accepts(header: str, wanted: str) -> bool:
    """Return whether a header names a coding (`q=0` forbids it)."""
    for item in header.lower().split(","):
        coding, _, quality = item.partition(";")
        if coding.strip() == wanted:
            return not re.fullmatch(r"\s*q\s*=\s*0(\.0*)?\s*", quality)
    return False
