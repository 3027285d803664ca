"""Commits the workload, never too far ahead of the client.

How far ahead is bounded in transactions, not in time: the ring always holds
what a client that was just killed still has to read, and the writer never
finishes while a kill is still due.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import click
from pymysql.err import DatabaseError

from benchmarks.torture.mix import Act, Kind, Mixer, decision, settings_of
from benchmarks.torture.shared_number import SharedNumber
from benchmarks.torture.workload import End, Work, Workload
from databus.demo.databases import Session, database_of
from databus.demo.writer import RateLimiter

WAIT_S = 0.002
DETACHED_S = 10.0


def run_transaction(session: Session, work: Work) -> None:
    """Run one transaction to its end."""
    session.begin()
    for sql, parameters in work.statements:
        session.execute(sql, parameters)
    if work.end is End.COMMIT:
        session.commit()
    else:
        session.rollback()


class Stagehand:
    """Carries out the acts of a mix; its own or another session ends a prepared transaction."""

    def __init__(self, connect: Callable[[], Session]) -> None:
        self._connect = connect
        self._session = connect()
        self._preparing: dict[str, Session] = {}  # transactions whose session is still open

    def do(self, act: Act) -> None:
        """Carry out one act."""
        if act.kind is Kind.RUN:
            run_transaction(self._session, act.work)
        elif act.kind is Kind.STATEMENT:
            self.execute(sql for sql, _ in act.work.statements)
        elif act.kind is Kind.PREPARE:
            self._prepare(act)
        else:
            self._end(act)

    def execute(self, statements: Iterable[str]) -> None:
        """Run statements outside any transaction."""
        for statement in statements:
            self._session.execute(statement)

    def close(self) -> None:
        """Close every session."""
        for session in (self._session, *self._preparing.values()):
            session.close()

    def _prepare(self, act: Act) -> None:
        session = self._connect()
        session.execute(f"XA START {act.xid}")
        for sql, parameters in act.work.statements:
            session.execute(sql, parameters)
        session.execute(f"XA END {act.xid}")
        session.execute(f"XA PREPARE {act.xid}")
        if act.work.number % 2:
            self._preparing[act.xid] = session
        else:
            session.close()

    def _end(self, act: Act) -> None:
        session = self._preparing.pop(act.xid, None)
        if session is not None:
            session.execute(decision(act))
            session.close()
            return
        deadline = time.monotonic() + DETACHED_S
        while True:
            try:
                self._session.execute(decision(act))
            except DatabaseError:
                # Until the server has ended the session that prepared it.
                if time.monotonic() > deadline:
                    raise
                time.sleep(WAIT_S)
            else:
                return


def write(hand: Stagehand, acts: Iterable[Act], lead: int, rate: float, folder: Path) -> None:
    """Carry out the acts at a rate of transactions, at most `lead` ahead of the client."""
    limiter = RateLimiter(rate, time.monotonic())
    with (
        SharedNumber(folder / "rolled_back") as undone,
        SharedNumber(folder / "applied") as applied,
    ):
        for act in acts:
            work = act.work
            is_ended = act.kind in (Kind.RUN, Kind.END)
            while is_ended and work.number - applied.get() > lead:
                time.sleep(WAIT_S)
            hand.do(act)
            if is_ended:
                undone.set(undone.get() + (work.end is End.ROLLBACK))
                time.sleep(limiter.delay_s(1, time.monotonic()))


@click.command()
@click.option("--uri", required=True)
@click.option("--password-file", type=click.Path(path_type=Path))
@click.option("--seed", type=int, required=True)
@click.option("--transactions", type=int, required=True)
@click.option("--lead", type=int, required=True)
@click.option("--rate", type=float, required=True)
@click.option("--folder", type=click.Path(path_type=Path), required=True)
@click.option("--mix", default="plain")
def main(
    uri: str,
    password_file: Path | None,
    seed: int,
    transactions: int,
    lead: int,
    rate: float,
    folder: Path,
    mix: str,
) -> None:
    """Run as the torture's writer process."""
    parts = mix.split(",")
    mixer = Mixer(Workload(seed), transactions, parts, seed)
    hand = Stagehand(database_of(uri, password_file).connect)
    try:
        hand.execute(settings_of(parts))
        write(hand, mixer.acts(), lead, rate, folder)
    finally:
        hand.close()


if __name__ == "__main__":
    main()
