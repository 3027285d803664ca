"""Who may ask a daemon what: tokens, and the roles they give. Pure.

A daemon without tokens trusts whoever reaches it, which is this host alone
unless its settings say otherwise. With tokens a request names one:

    Authorization: Bearer 3q2-7wAA…
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from enum import IntEnum

_SCHEME = "bearer"


class Role(IntEnum):
    """What somebody may do; each role may do what those before it may."""

    NOBODY = 0  # has shown no token that is known
    READER = 1  # read everything: rows, figures, schemas
    ADMIN = 2  # pause, resume, restart, drain


class Access:
    """The tokens of one daemon."""

    def __init__(self, reader_tokens: Iterable[str] = (), admin_tokens: Iterable[str] = ()) -> None:
        """Take the tokens; those of admins may read, too."""
        self._roles = [
            *((token.encode(), Role.ADMIN) for token in admin_tokens),
            *((token.encode(), Role.READER) for token in reader_tokens),
        ]

    @property
    def is_open(self) -> bool:
        """Whether there are no tokens, so that everybody may do everything."""
        return not self._roles

    def role_of(self, authorization: str | None) -> Role:
        """Return the role that an `Authorization` header gives."""
        if self.is_open:
            return Role.ADMIN
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != _SCHEME:
            return Role.NOBODY
        given, found = token.strip().encode(), Role.NOBODY
        for known, role in self._roles:
            # All are compared, each in the same time whatever it has in common.
            if hmac.compare_digest(given, known):
                found = max(found, role)
        return found
