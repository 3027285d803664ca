"""Go on after a row that cannot be processed, and put it where somebody finds it.

    python examples/dead_letters.py http://127.0.0.1:11115 letters.jsonl checkpoints

A callback that raises gets its transaction again, and after `callback_retries` the client stops:
nothing is left out in silence. Where one bad row must not hold up the others, catch what is the
row's own fault, and only that: a database that is away is not.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from databus.client import DatabusClient, DataEvent

KNOWN = {"placed", "paid", "packed", "sent"}


def process(event: DataEvent) -> None:
    """Do the work; raises ValueError for a row that makes no sense."""
    if not event.is_truncate and event.row["status"] not in KNOWN:
        raise ValueError(f"no such status: {event.row['status']}")
    print("processed", event.op, event.row.get("id"), flush=True)


def bury(letters: Path, event: DataEvent, problem: Exception) -> None:
    """Append a row and what is wrong with it; a row that comes twice is there twice."""
    letter = {"scn": event.scn, "source": event.source, "op": event.op, "problem": str(problem)}
    with letters.open("a", encoding="utf-8") as file:
        file.write(json.dumps(letter | {"row": dict(event.row)}, default=str) + "\n")


def main(relay: str, letters: str, checkpoints: str) -> None:
    """Process until Ctrl-C."""
    client = DatabusClient(relay, checkpoint_dir=checkpoints)

    @client.on("shop.orders")
    def changed(event: DataEvent) -> None:
        try:
            process(event)
        except ValueError as problem:
            bury(Path(letters), event, problem)

    client.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
