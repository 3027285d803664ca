"""Chains of relays, and what is compared of them."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from databus.schemas.checkpoint import Checkpoint
from tests.promises.running import RunningRelay, Shop, running, wait_until

QUICK: Mapping[str, Any] = {"reconnect_min_s": 0.05, "reconnect_max_s": 0.2, "switch_after_s": 0.3}


def link(folder: Path, *urls: str, sources: list[Any], **more: Any) -> RunningRelay:
    """Return a relay that reads others, not started yet."""
    relay_options = more.pop("options", {})
    uris = [f"databus+{url}" for url in urls]
    settings = {
        "name": "shop",
        "uri": uris[0] if len(uris) == 1 else uris,
        "sources": sources,
        "start": "earliest",
        **QUICK,
        **more,
    }
    return RunningRelay(folder, settings, name=folder.name, **relay_options)


@contextlib.contextmanager
def chain(
    first: RunningRelay, folder: Path, length: int = 3, **more: Any
) -> Iterator[list[RunningRelay]]:
    """Start relays, each of which reads the one before it."""
    with contextlib.ExitStack() as stack:
        relays = [first]
        stack.enter_context(running(first)).start()
        sources = list(first.physical[0]["sources"])
        for number in range(2, length + 1):
            relay = link(folder / f"relay-{number}", relays[-1].url, sources=sources, **more)
            stack.enter_context(running(relay)).start()
            relays.append(relay)
        yield relays


def stream_of(relay: RunningRelay, size: int = 1 << 20) -> bytes:
    """Return all bytes that a relay serves, empty windows and DDL too."""
    found: list[bytes] = []
    checkpoint = Checkpoint.flexible()
    while True:
        answer = relay.stream(checkpoint, size=size, ddl="true")
        assert answer.status == 200, answer.body
        if not answer.body:
            return b"".join(found)
        found.append(answer.body)
        scn, offset = map(int, answer.headers["x-databus-resume"].split(","))
        checkpoint = Checkpoint(Checkpoint.at(scn).mode, scn, offset)


def digest_of(relay: RunningRelay) -> str:
    """Return the SHA-256 of all that a relay serves."""
    return hashlib.sha256(stream_of(relay)).hexdigest()


def insert(shop: Shop, relay: RunningRelay, *ids: int) -> None:
    """Insert rows, each in a transaction of its own, and wait until a relay has the last one."""
    for number in ids[:-1]:
        shop.insert(number)
    row = f"row {ids[-1]}"
    shop.insert(ids[-1], note=row)
    wait_until(lambda: row.encode() in stream_of(relay), row, relay.tell)


def wait_for_equal(*relays: RunningRelay) -> None:
    """Wait until all serve the same bytes: those that the first has, once it has no more to come.

    What was written before must be in the first already (`insert`): relays that are equally
    late are equal too.
    """
    wait_until(
        lambda: len({digest_of(relay) for relay in relays}) == 1,
        "the same bytes",
        lambda: "\n".join(relay.tell() for relay in relays),
    )
