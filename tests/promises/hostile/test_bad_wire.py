"""Bytes that change between a server and the relay: read again over another connection."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.adversity.proxy import Tamper, WireProxy
from databus.demo.private_mariadb import HOST
from tests.mariadb_server import Database
from tests.promises.running import (
    Remembering,
    RunningRelay,
    consuming,
    mysql_source,
    running,
    wait_until,
)

pytestmark = pytest.mark.mariadb
ROUNDS = 6


def flipping(rng: random.Random) -> Tamper:
    """Flip one bit of the content of one packet, whichever it is."""
    flipped: list[int] = []

    def tamper(packet: bytes) -> list[bytes]:
        if flipped or len(packet) < 30 or rng.random() < 0.5:
            return [packet]
        flipped.append(rng.randrange(5, len(packet)))  # behind length, number and the OK byte
        changed = bytearray(packet)
        changed[flipped[0]] ^= 1 << rng.randrange(8)
        return [bytes(changed)]

    return tamper


def test_a_flipped_bit_is_cured_by_another_connection_and_nobody_is_told_to_skip_anything(
    database: Database, tmp_path: Path
) -> None:
    rng, seen = random.Random(12), Remembering()
    with WireProxy(database.server.port) as proxy:
        settings = mysql_source(database, tmp_path, uri=f"mysql://databus@{HOST}:{proxy.port}")
        with running(RunningRelay(tmp_path, settings)) as relay:
            relay.start()
            with consuming([relay.url], [f"{database.name}.orders"], seen):
                for number in range(ROUNDS):
                    proxy.tamper = flipping(rng)
                    proxy.cut()
                    for row in range(5):
                        database.run(f"INSERT INTO orders (id) VALUES ({number * 5 + row})")
                    wanted = 5 * (number + 1)
                    wait_until(lambda n=wanted: len(seen.events) == n, "rows", relay.tell)  # type: ignore[misc]
                    assert "acknowledged_scns" not in relay.tell()
            assert [event.row["id"] for event in seen.events] == list(range(5 * ROUNDS))
