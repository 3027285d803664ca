"""Appends windows to a ring and follows it with a log, until it is killed.

Run as `python -m tests.relay.log.child FOLDER`. Prints the SCN of each sync.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(folder: Path) -> None:
    """Append, copy and sync for ever, from the ring's newest window on."""
    from tests.relay.log.test_follower import Pair

    pair = Pair(folder)
    while True:
        scn = max(pair.ring.max_scn, 0)
        pair.append(range(scn + 1, scn + 1 + scn % 7 + 1))
        pair.follower.copy(is_all=scn % 3 == 0)
        pair.follower.sync()
        # What the log lacks must stay in the ring, as a relay would see to.
        if pair.ring.tail - pair.follower.durable_position > 2000:
            pair.catch_up()
        print(pair.writer.durable.scn, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
