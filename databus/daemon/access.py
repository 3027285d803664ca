"""Access control of a daemon: tokens, and the roles they grant. Pure.

A daemon without tokens answers every request that reaches it. By default only this machine
reaches it. With tokens, a request must have one:

    Authorization: Bearer 3q2-7wAA…

Without tokens, the daemon must still refuse the pages of other sites in a browser on this
machine. Such a page can send requests to any address; they have another `Origin`. It can also
make its own name resolve to the loopback address (DNS rebinding); such requests have another
`Host`. Both are refused.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from ipaddress import ip_address
from types import MappingProxyType
from urllib.parse import urlsplit

from databus.conf.patterns import NamePatterns
from databus.conf.settings import HttpSettings
from databus.schemas.errors import ForbiddenError, UnauthorizedError

_SCHEME = "bearer"


class Role(IntEnum):
    """A role; each one includes the rights of those before it."""

    NOBODY = 0  # without a known token
    READER = 1  # read everything, or the sources that its token is for
    ADMIN = 2  # pause, resume, restart, drain


class ReadLimit:
    """The sources that a token may read, by patterns of their names."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = NamePatterns(patterns)

    def __str__(self) -> str:
        return " ".join(self.patterns.texts)

    def may_read(self, source: str) -> bool:
        """Return whether the token may read a source."""
        return self.patterns.match(source)

    def check(self, sources: Iterable[str]) -> None:
        """Raise ForbiddenError, which names a source, unless all may be read."""
        for source in sources:
            if not self.may_read(source):
                raise ForbiddenError(f"the token may not read {source}: it is for {self}")

    def refuse(self, path: str) -> ForbiddenError:
        """Return the error about what is not about certain sources."""
        return ForbiddenError(f"{path} is about all sources, and the token is for {self} only")


class Access:
    """The tokens of one daemon."""

    def __init__(
        self,
        reader_tokens: Iterable[str] = (),
        admin_tokens: Iterable[str] = (),
        limits: Mapping[str, ReadLimit] = MappingProxyType({}),
    ) -> None:
        """Set the tokens; an admin's token includes reading, and `limits` are those of readers'."""
        self._roles = [
            *((token.encode(), Role.ADMIN) for token in admin_tokens),
            *((token.encode(), Role.READER) for token in reader_tokens),
        ]
        self._limits = {token.encode(): limit for token, limit in limits.items()}

    @property
    def is_open(self) -> bool:
        """Whether there are no tokens, so that every request has all rights."""
        return not self._roles

    def role_of(self, authorization: str | None) -> Role:
        """Return the role of an `Authorization` header."""
        if self.is_open:
            return Role.ADMIN
        given, found = _token_of(authorization), Role.NOBODY
        for known, role in self._roles:
            # All are compared, in constant time: the response time tells nothing of a token.
            if hmac.compare_digest(given, known):
                found = max(found, role)
        return found

    def limit_of(self, authorization: str | None) -> ReadLimit | None:
        """Return what a reader's token may read; None if that is everything."""
        if not self._limits or self.role_of(authorization) is not Role.READER:
            return None
        given, found = _token_of(authorization), None
        for known, limit in self._limits.items():
            if hmac.compare_digest(given, known):
                found = limit
        return found


@dataclass(frozen=True, slots=True)
class AccessHeaders:
    """The headers of a request that decide about access; None = no such header."""

    scheme: str
    host: str  # with the port
    authorization: str | None
    origin: str | None


def _token_of(authorization: str | None) -> bytes:
    """Return the token of an `Authorization` header; empty without one."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip().encode() if scheme.lower() == _SCHEME else b""


def check_permission(
    headers: AccessHeaders, needed: Role, access: Access, settings: HttpSettings
) -> None:
    """Raise UnauthorizedError or ForbiddenError unless the request is permitted."""
    if needed is Role.NOBODY:
        return
    _check_role(access.role_of(headers.authorization), needed, headers.authorization)
    if (
        headers.origin is not None
        and headers.origin.lower() != f"{headers.scheme}://{headers.host}"
    ):
        raise ForbiddenError(
            f"Origin {headers.origin[:100]!r} is not this server's own page, and pages of others "
            "are not answered"
        )
    if access.is_open and not _is_own_host(headers.host, needed, settings):
        raise ForbiddenError(
            f"Host {headers.host[:100]!r} is not known to be this server: use its address or "
            "localhost, set http.host to that name, or give the server tokens"
        )


def _check_role(role: Role, needed: Role, authorization: str | None) -> None:
    if role >= needed:
        return
    if role is Role.NOBODY:
        raise UnauthorizedError(
            "the token is not known here" if authorization else "this server asks for a token"
        )
    raise ForbiddenError(
        f"this is for {needed.name.lower()}s, and the token is a {role.name.lower()}'s: "
        "use one of admin_tokens_file or admin_token_env"
    )


def _is_own_host(host: str, needed: Role, settings: HttpSettings) -> bool:
    name, is_address = _parse_host(host)
    if is_address or name in ("localhost", settings.host.lower()):
        return True
    # An attacker's name in the DNS has a dot. A name without one, such as that of a container,
    # is sufficient for reading; no name at all is not.
    is_local = bool(name) and "." not in name
    return needed < Role.ADMIN and (settings.open_to_all or is_local)


@lru_cache(maxsize=16)  # a server has few names, and each request one of them
def _parse_host(host: str) -> tuple[str, bool]:
    """Return the name without the port, and whether it is an address."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        name = host
    try:
        ip_address(name)
    except ValueError:
        return name, False
    return name, True
