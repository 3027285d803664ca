"""Answers that only admins may read.

An endpoint with the role of an admin is for POST alone, because a link in a page of others can send
a GET. These change nothing, so the role is checked here.
"""

from __future__ import annotations

from databus.daemon.access import Role
from databus.daemon.http.openapi import Peer
from databus.schemas.errors import ForbiddenError

FOR_ADMINS = {403: "It needs an admin's token"}


def check_admin(peer: Peer) -> None:
    """Raise ForbiddenError unless an admin asks."""
    if peer.role is not Role.ADMIN:
        raise ForbiddenError(
            "this is for admins, and the token is a reader's: use one of admin_tokens_file or "
            "admin_token_env"
        )
