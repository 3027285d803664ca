"""Asks another relay for its table of epochs, by its API."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from typing import Any
from urllib.parse import quote

from databus.conf.settings import PhysicalSourceSettings, ServerAccessSettings
from databus.daemon.credentials import ServerAccess
from databus.daemon.http.client import FAILURES, HttpClient, printable
from databus.relay.capture.peers.agreement import Claim, PeerTable
from databus.relay.sources.epochs import parse_epoch
from databus.schemas.errors import DatabusError, ServerError
from databus.schemas.log_mark import LogMark

_CONNECT_S = 1.0
_ANSWER_S = 2.0
_MAX_BYTES = 4 << 20

_IF_GONE = (
    "If that relay is gone for good, take it out of `epoch_peers` of every relay of this source, "
    "and start this one again"
)
_NO_ACCESS = ": it asks for a reader's token, see `epoch_peers_token_file`"
_ADVICE = {
    401: _NO_ACCESS,
    403: _NO_ACCESS,
    404: ": it is no relay, or one that captures no physical source of this name",
}

AskPeer = Callable[[str], PeerTable]


def asker(settings: PhysicalSourceSettings, relay_id: str) -> AskPeer:
    """Return a function that asks the peer at a URL, and raises ServerError.

    `relay_id` is that of the relay that asks, as its own table has it.
    """
    access = ServerAccess(
        ServerAccessSettings(
            token_file=settings.epoch_peers_token_file, tls_ca=settings.epoch_peers_tls_ca
        )
    )
    path = f"/api/v1/physicalSources/{quote(settings.name)}/epochs"

    def ask(url: str) -> PeerTable:
        client = HttpClient(
            url,
            access,
            connect_timeout_s=_CONNECT_S,
            response_timeout_s=_ANSWER_S,
            max_bytes=_MAX_BYTES,
            headers={"Connection": "close"},
        )
        try:
            with closing(client):
                response = client.get(path)
        except FAILURES as error:
            raise ServerError(url, f"does not answer: {printable(error)}. {_IF_GONE}") from None
        except DatabusError as error:
            raise ServerError(url, str(error)) from error
        if response.status != 200:
            advice = _ADVICE.get(response.status, "")
            raise ServerError(url, f"{path}: {response.status} {response.reason}{advice}")
        try:
            value = json.loads(response.body)
            if value["relayId"] == relay_id:
                raise ServerError(url, "is this relay itself: `epoch_peers` names the others")
            return parse_table(url, value)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ServerError(url, f"{path}: not a table of epochs: {error!r}") from None

    return ask


def parse_table(url: str, value: Any) -> PeerTable:
    """Return the table in a relay's answer; raises ValueError, KeyError, TypeError."""
    claim, mark = value["claim"], value["logMark"]
    return PeerTable(
        url,
        tuple(parse_epoch(one) for one in value["epochs"]),
        None
        if claim is None
        else Claim(int(claim["number"]), claim["server"], claim["uri"], bool(claim["isConfirmed"])),
        None if mark is None else LogMark.decode(mark),
    )
