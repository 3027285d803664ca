"""No torn and no overwritten window is ever served by a process that does not write the ring."""

from __future__ import annotations

import hashlib
import threading
from contextlib import closing

from databus.schemas.checkpoint import Checkpoint
from databus.schemas.event.event import EOP_SRC_ID
from databus.schemas.event.v2 import decode
from tests.promises.running import RunningRelay
from tests.promises.serving.processes import KeptConnection, stream_path

READERS, ANSWERS = 4, 150


class Reader:
    """Reads at full speed, half of it at the oldest windows; checks every event."""

    def __init__(self, relay: RunningRelay) -> None:
        self._relay = relay
        self.digests: dict[int, bytes] = {}

    def run(self) -> None:
        """Read so many answers."""
        checkpoint = Checkpoint.flexible()
        with closing(KeptConnection(self._relay)) as connection:
            for number in range(ANSWERS):
                if number % 2:  # the oldest windows are those that are overwritten next
                    checkpoint = Checkpoint.flexible()
                answer = connection.get(stream_path(checkpoint, size=200_000))
                if answer.status == 404 and b"ScnNotFound" in answer.body:
                    checkpoint = Checkpoint.flexible()
                    continue
                assert answer.status == 200
                newest = self._check(answer.body, checkpoint)
                resume = answer.headers["x-databus-resume"]
                assert resume == f"{newest},-1"
                checkpoint = Checkpoint.at(newest)

    def _check(self, body: bytes, begin: Checkpoint) -> int:
        at = window_begin = 0
        newest = None if begin.is_flexible else begin.window_scn
        while at < len(body):
            event, size = decode(body[at:])  # raises for a wrong CRC
            at += size
            # Transactions are numbered: none is left out, none is of another lap.
            assert newest is None or event.scn == newest + 1
            if event.src_id == EOP_SRC_ID:
                newest = event.scn
                digest = hashlib.sha256(body[window_begin:at]).digest()
                assert self.digests.setdefault(newest, digest) == digest
                window_begin = at
        assert window_begin == at == len(body)
        assert newest is not None
        return newest


def test_windows_that_are_overwritten_while_they_are_read_are_never_served(
    flooded: RunningRelay,
) -> None:
    readers = [Reader(flooded) for _ in range(READERS)]
    failures: list[BaseException] = []

    def run(reader: Reader) -> None:
        try:
            reader.run()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(one,)) for one in readers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    # The ring was overwritten many times meanwhile.
    oldest = min(min(one.digests) for one in readers)
    info = flooded.get("/bufferInfo/inbound/gen/0").json()
    assert info["minScn"] - oldest > 2 * (info["maxScn"] - info["minScn"])
    for scn in set.union(*(set(one.digests) for one in readers)):
        found = {one.digests[scn] for one in readers if scn in one.digests}
        assert len(found) == 1
    assert sum(len(one.digests) for one in readers) > ANSWERS
