"""Addresses: who reaches them, which ports are bound twice, passwords in URIs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from ipaddress import ip_address

from databus.conf.model import Settings

EVERYWHERE = ("", "0.0.0.0", "::")
_PORTS = ("port", "monitor_port")
# A password may have slashes and at-signs in it: it ends before the last at-sign of the word.
_PASSWORD = re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://[^/@:\s]*):\S*@")
# Of one URI, which may be a wrong one: the password may have spaces, too.
_PASSWORD_OF_ONE = re.compile(r"(://[^:/@]*:).*(?=@)")
_PASSWORD_IN_QUERY = re.compile(r"(?i)([?&]\w*password\w*=)[^&\s'\"]*")


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address; `localhost` is the only name."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def has_password(uri: str) -> bool:
    """Return whether a URI has a password in it."""
    return _PASSWORD.match(uri) is not None


def without_password(text: str) -> str:
    """Return a URI, or a text with URIs, without the passwords in it."""
    return _PASSWORD_IN_QUERY.sub(r"\1", _PASSWORD.sub(r"\1@", text))


def shown_uri(uri: str) -> str:
    """Return one URI, also a wrong one, with *** for its password."""
    return _PASSWORD_IN_QUERY.sub(r"\1***", _PASSWORD_OF_ONE.sub(r"\1***", uri))


def check_ports(servers: Mapping[str, Settings | None]) -> None:
    """Raise ValueError if two servers bind one port; they have the names of their settings.

    One that names no host has that of `http`.
    """
    http = servers["http"]
    bound: list[tuple[str, str, int]] = []
    for key, host, port in _bound(servers, getattr(http, "host", "")):
        for other, its_host, its_port in bound:
            is_same = host == its_host or {host, its_host} & {*EVERYWHERE}
            if port == its_port and is_same:
                raise ValueError(f"{key} and {other} are both {port}: give each a port of its own")
        bound.append((key, host, port))


def _bound(
    servers: Mapping[str, Settings | None], host_of_http: str
) -> Iterator[tuple[str, str, int]]:
    for name, server in servers.items():
        host = getattr(server, "host", host_of_http)
        for key in _PORTS:
            port = getattr(server, key, None)
            if port:  # 0 picks a free one
                yield f"{name}.{key}", host, port
