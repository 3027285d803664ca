"""Changes rows all the time, and notes each change after its commit: `KEY SERIAL`.

The serials of a key grow, so their order is that of its changes: 2 * n when the row gets the
number n, 2 * n + 1 when that row is deleted.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path

import click

from databus.demo.databases import Session, database_of
from databus.demo.writer import RateLimiter

SOURCE = "shop.items"
CREATE = "CREATE TABLE items (id BIGINT PRIMARY KEY, n BIGINT NOT NULL, note VARCHAR(40))"
KEYS = 400
MOST_CHANGES = 6
DELETED_SHARE = 0.2


class Writer:
    """One session that commits transactions."""

    def __init__(self, session: Session, seed: int) -> None:
        self._session = session
        self._draw = random.Random(f"writer {seed}")
        self._numbers: dict[int, int] = {}
        self._present: set[int] = set()

    def commit_one(self) -> list[tuple[int, int]]:
        """Commit a transaction; return the key and the serial of each change."""
        self._session.begin()
        changes = range(self._draw.randint(1, MOST_CHANGES))
        made = [self._change(self._draw.randrange(KEYS)) for _ in changes]
        self._session.commit()
        return made

    def _change(self, key: int) -> tuple[int, int]:
        number = self._numbers.get(key, 0)
        if key in self._present and self._draw.random() < DELETED_SHARE:
            self._present.discard(key)
            self._session.execute("DELETE FROM items WHERE id = ?", (key,))
            return key, serial_of(number, is_delete=True)
        number = self._numbers[key] = number + 1
        note = f"number {number}"
        if key in self._present:
            self._session.execute(
                "UPDATE items SET n = ?, note = ? WHERE id = ?", (number, note, key)
            )
        else:
            self._present.add(key)
            self._session.execute("INSERT INTO items VALUES (?, ?, ?)", (key, number, note))
        return key, serial_of(number, is_delete=False)


def serial_of(number: int, *, is_delete: bool) -> int:
    """Return the serial of a change."""
    return 2 * number + is_delete


@click.command()
@click.option("--uri", required=True)
@click.option("--password-file", type=click.Path(path_type=Path))
@click.option("--seed", type=int, required=True)
@click.option("--rate", type=float, required=True)
@click.option("--file", type=click.Path(path_type=Path), required=True)
def main(uri: str, password_file: Path | None, seed: int, rate: float, file: Path) -> None:
    """Run as the writer process, until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    session = database_of(uri, password_file).connect()
    limiter = RateLimiter(rate, time.monotonic())
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    writer = Writer(session, seed)
    while not stop.is_set():
        made = writer.commit_one()
        os.write(fd, "".join(f"{key} {serial}\n" for key, serial in made).encode())
        stop.wait(limiter.delay_s(1, time.monotonic()))
    session.close()


if __name__ == "__main__":
    main()
