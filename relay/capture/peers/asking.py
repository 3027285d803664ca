"""Asks another relay for its table of epochs, by its API."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from typing import Any
from urllib.parse import quote

from databus.conf.settings import PhysicalSourceSettings, ServerAccessSettings
from databus.daemon.credentials import ServerAccess
from databus.daemon.http.client import FAILURES, HttpClient
from databus.relay.capture.peers.agreement import Claim, PeerTable
from databus.relay.sources.epochs import Epoch
from databus.schemas.errors import DatabusError, ServerError
from databus.schemas.log_mark import LogMark

_CONNECT_S = 1.0
_ANSWER_S = 2.0
_MAX_BYTES = 4 << 20

AskPeer = Callable[[str], PeerTable]


def asker(settings: PhysicalSourceSettings) -> AskPeer:
    """Return what asks a peer of a physical source, given its URL; it raises ServerError."""
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
            raise ServerError(url, f"does not answer: {error}") from None
        except DatabusError as error:
            raise ServerError(url, str(error)) from error
        if response.status != 200:
            raise ServerError(url, f"{path}: {response.status} {response.reason}")
        try:
            return parse_table(url, json.loads(response.body))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ServerError(url, f"{path}: not a table of epochs: {error!r}") from None

    return ask


def parse_table(url: str, value: Any) -> PeerTable:
    """Return the table in a relay's answer; raises ValueError, KeyError, TypeError."""
    claim, mark = value["claim"], value["logMark"]
    return PeerTable(
        url,
        tuple(_parse_epoch(one) for one in value["epochs"]),
        None
        if claim is None
        else Claim(int(claim["number"]), claim["server"], claim["uri"], bool(claim["isConfirmed"])),
        None if mark is None else LogMark.decode(mark),
    )


def _parse_epoch(one: Any) -> Epoch:
    after = one["afterScn"]
    return Epoch(
        number=int(one["number"]),
        server=str(one["server"]),
        uri=str(one["uri"]),
        first_scn=int(one["firstScn"]),
        after_scn=-1 if after is None else int(after),
        file=str(one["file"]),
        offset=int(one["offset"]),
        executed=one["executed"],
        began_s=int(one["beganAt"]),
    )
