"""Another process at a ring: `python -m tests.relay.ring.child COMMAND PATH NUMBER [WAY]`.

append PATH CAPACITY WAY
                       append `window_of(scn)` for ever from where the ring is, in every way
                       there is, and write each SCN to standard output once it is in
restart PATH CAPACITY  append, and now and then empty the ring to begin at another SCN, for ever;
                       write a line once each is done
read PATH LAST_SCN     read as fast as it goes until LAST_SCN, checking every
                       event; write a line when it begins and what it saw, as JSON, in the end
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

from databus.relay.ring.reader import RingReader
from databus.relay.ring.ring import Ring
from databus.schemas.errors import ScnNotFoundError
from tests.relay.ring.compiled import ring_work
from tests.relay.ring.model import (
    append_in_pieces,
    append_placed,
    batch_of,
    split_events,
    window_of,
)


def append_for_ever(path: Path, capacity_bytes: int) -> None:
    ring = Ring.open(path, "shop", capacity_bytes, start_scn=0)
    scn = ring.max_scn
    while True:
        windows = [window_of(scn + step) for step in range(1, 6)]
        ring.append(windows[:2])
        if not append_placed(ring, windows[2:4]):
            ring.append_batch(batch_of(windows[2:4]))
        append_in_pieces(ring, windows[4], 50)
        scn += len(windows)
        os.write(1, b"%d\n" % scn)


def restart_for_ever(path: Path, capacity_bytes: int) -> None:
    ring = Ring.open(path, "shop", capacity_bytes, start_scn=100)
    chosen = random.Random(ring.max_scn)
    while True:
        scn = ring.max_scn
        ring.append([window_of(scn + step) for step in range(1, 40)])
        ring.restart_after(chosen.randrange(max(0, scn - 60), scn + 60))
        os.write(1, b"%d\n" % ring.max_scn)


def follow(reader: RingReader, last_scn: int, chunk_bytes: int) -> dict[str, int]:
    """Read until `last_scn`; every window must be whole, right, and in order.

    A follower that is overtaken goes on from the oldest window, as a client
    would after a bootstrap.
    """
    seen = {"windows": 0, "overtaken": 0, "missed": 0, "scn": 0}
    while seen["scn"] < last_scn:
        try:
            position = reader.find(seen["scn"], -1)
            assert position is not None
            end = reader.end_of_windows(position, chunk_bytes)
            data = reader.read(position, end - position)
        except ScnNotFoundError:
            oldest = reader.prev_scn
            assert oldest >= seen["scn"]
            seen["overtaken"] += 1
            seen["missed"] += oldest - seen["scn"]
            seen["scn"] = oldest
            continue
        _check_windows(data, seen)
    return seen


def _check_windows(data: bytes, seen: dict[str, int]) -> None:
    while data:
        expected = window_of(seen["scn"] + 1)
        assert data.startswith(expected.data), f"window {expected.scn} is not what was appended"
        assert split_events(expected.data)
        seen["scn"] += 1
        seen["windows"] += 1
        data = data[len(expected.data) :]


if __name__ == "__main__":
    command, path, number = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if command == "append":
        with ring_work(sys.argv[4]):
            append_for_ever(path, number)
    if command == "restart":
        restart_for_ever(path, number)
    ring_reader = RingReader.open(path)
    print("reading", flush=True)
    print(json.dumps(follow(ring_reader, number, 1 << 16)))
    ring_reader.close()
