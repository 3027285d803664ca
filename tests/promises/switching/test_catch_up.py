"""After a switch, what only the new server's log has is read from there."""

from __future__ import annotations

from pathlib import Path

from databus.schemas.checkpoint import Checkpoint
from tests.promises.running import Remembering, consuming, running, wait_until
from tests.promises.switching.server_pair import Load, ServerPair, rows
from tests.promises.switching.test_switch import ids, pair, relay_of, switch, view

__all__ = ["pair"]

pytest_plugins = ["tests.mysql"]

MANY = 4000


def test_a_consumer_older_than_the_ring_is_served_from_the_server_that_took_over(
    pair: ServerPair, tmp_path: Path
) -> None:
    with running(relay_of(pair, tmp_path, ring_bytes=64 << 10)) as relay:
        relay.start()
        load, first, rest = Load(pair), Remembering(), Remembering()
        with consuming([relay.url], ["shop.orders"], first):
            load.write(20)
            wait_until(lambda: len(ids(first)) == 20, "the first rows", relay.tell)
            pair.catch_up()
            assert switch(relay, pair.replica.uri).status == 200
            pair.promote()
            load.write(20)
            wait_until(lambda: len(ids(first)) == 40, "those of the second server", relay.tell)
        old, scn = first.scns[0], first.scn
        assert (scn >> 55, view(relay)["epoch"]) == (1, 1)
        load.write(MANY)
        wait_until(
            lambda: relay.get("/bufferInfo/inbound/shop/0").json()["minScn"] > scn,
            "the place to be out of the ring",
            relay.tell,
        )
        pair.replica.kill()  # the server of before
        with consuming([relay.url], ["shop.orders"], rest, start=f"scn:{scn}"):
            wait_until(lambda: len(ids(rest)) >= MANY, "the rest", relay.tell)
        assert ids(first) + ids(rest) == rows(pair.primary)
        # The log of the server before is not looked for in another one's.
        answer = relay.stream(Checkpoint.at(old), wait=5000)
        assert answer.status == 404
