"""A process that owns a lease and writes under it, for tests that stop or kill it.

    python -m tests.databus.leases.owner URL FOLDER TTL_S

It prints `holds TERM`, then renews its lease in time and obeys lines on its standard input:
`look` prints whether it believes to hold the lease; `write SCN` writes a checkpoint and MaxSCN
without looking, as a process does that was frozen just after it looked.
"""

from __future__ import annotations

import io
import select
import sys
from pathlib import Path

from databus.leases.errors import LeaseLostError, StaleTermError
from databus.leases.holding import HeldLease
from databus.leases.places import open_leases
from databus.schemas.checkpoint import Checkpoint
from tests.databus.leases.writing import LEASE, NAME, SOURCES, Positions


def main(url: str, folder: Path, ttl_s: float) -> None:
    """Hold the lease until the input ends."""
    leases, positions = open_leases(url), Positions(url, folder)
    lease = leases.acquire(LEASE, "owner", ttl_s)
    assert lease is not None
    held = HeldLease(leases, lease)
    positions.begin(lease.term)
    say(f"holds {lease.term}")
    lines = io.FileIO(0, closefd=False)  # unbuffered: `select` must see each line
    while True:
        if not select.select([lines], [], [], held.due_in_s)[0]:
            held.renew_if_due()
            continue
        command, _, value = lines.readline().decode().strip().partition(" ")
        if command == "look":
            look(held)
        elif command == "write":
            write(positions, lease.term, int(value))
        else:
            break
    positions.close()
    leases.close()


def look(held: HeldLease) -> None:
    """Print what the owner itself believes."""
    try:
        say(f"holds {held.term()}")
    except LeaseLostError:
        say("lost")


def write(positions: Positions, term: int, scn: int) -> None:
    """Write both positions and print what became of each."""
    said = []
    try:
        positions.checkpoints.save_under(NAME, SOURCES, Checkpoint.at(scn), term)
        said.append("saved")
    except StaleTermError as error:
        said.append(f"{error.term}<{error.newest}")
    try:
        positions.max_scn.save_under(scn, 1, term)
        said.append("saved")
    except StaleTermError as error:
        said.append(f"{error.term}<{error.newest}")
    say(" ".join(said))


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
