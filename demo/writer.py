"""`python -m databus.demo.writer`: commits the shop's transactions at a given rate."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import click

from databus.demo.databases import Session, database_of
from databus.demo.shop import Shop, Statement

BEHIND_FORGIVEN_S = 1.0


class RateLimiter:
    """Spaces changes so that their average rate is `rate` a second."""

    def __init__(self, rate: float, now_s: float) -> None:
        self._rate = rate
        self._due_s = now_s

    def delay_s(self, changes: int, now_s: float) -> float:
        """Count changes just made; return how long to wait before the next."""
        self._due_s += changes / self._rate
        # After a stall the rate continues as before; lost time is not made up with a burst.
        self._due_s = max(self._due_s, now_s - BEHIND_FORGIVEN_S)
        return max(0.0, self._due_s - now_s)


def commit(session: Session, statements: list[Statement]) -> None:
    """Run one transaction."""
    session.begin()
    for statement in statements:
        session.execute(statement.sql, statement.parameters)
    session.commit()


def moment() -> str:
    """Return now as the text of a DATETIME(3), in UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


@click.command()
@click.option("--uri", required=True)
@click.option("--password-file", type=click.Path(path_type=Path))
@click.option("--seed", type=int, default=1)
@click.option("--rate", type=float, default=20.0, help="Changes per second.")
@click.option("--changes", type=int, help="Stop after this many changes.")
def main(uri: str, password_file: Path | None, seed: int, rate: float, changes: int | None) -> None:
    """Fill an empty database with the shop, and commit transactions until stopped."""
    session = database_of(uri, password_file).connect()
    shop = Shop(seed, time.time_ns, moment)
    limiter = RateLimiter(rate, time.monotonic())
    try:
        for statements in shop.transactions(changes):
            commit(session, statements)
            time.sleep(limiter.delay_s(len(statements), time.monotonic()))
    finally:
        session.close()


if __name__ == "__main__":
    main()
