"""The errors of Canal's protocol: a number and a text, of which Java's client shows the text."""

from __future__ import annotations

from databus.schemas.errors import DatabusError

BAD_REQUEST = 400  # anything else
NO_NAME = 401  # destination or client id are missing
NO_BATCH_ID = 402


class CanalError(DatabusError):
    """A request of a client of Canal is refused."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def not_subscribed(destination: str, client_id: int) -> CanalError:
    """Return the error of a client that has not subscribed, or not any more."""
    return CanalError(
        BAD_REQUEST,
        f"ClientIdentity:[destination={destination},clientId={client_id}] should subscribe first",
    )
