"""Decides whether capture can go on at another server without a loss or a repetition. Pure.

A position in one server's log means nothing in that of another one, but a GTID names the same
transaction on both. Capture goes on if the other server has all transactions that were delivered,
and its log has all that come after them:

    MySQL     the delivered set is part of gtid_executed, and gtid_purged is part of that set
    MariaDB   for each domain, the last delivered transaction is the server's newest one, or it
              is in its log. A higher number of another server proves nothing: two servers that
              both took writes give the same numbers to different transactions

The same server with another log (RESET MASTER, a restored copy) never goes on by itself: it may
have given GTIDs that were delivered to other transactions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from databus.relay.sources.epochs import Epoch
from databus.relay.sources.mysql.binlog.gtid_set import (
    MysqlGtidSet,
    parse_mariadb_position,
    purged_problem,
)
from databus.schemas.scn import MAX_EPOCH, binlog_position


@dataclass(frozen=True, slots=True)
class MysqlState:
    """What a MySQL server says of its GTIDs."""

    mode: str
    executed: str
    purged: str


@dataclass(frozen=True, slots=True)
class MariadbState:
    """What a MariaDB server says of its GTIDs.

    `logged` is gtid_binlog_state, the last transaction of each domain and server in its log;
    `current` is gtid_current_pos, the newest one of each domain.
    """

    logged: str
    current: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether capture can go on: if `problem` is empty, and all of `to_find` are in the log.

    `missing` are the delivered transactions that the server does not have.
    """

    problem: str = ""
    missing: tuple[str, ...] = ()
    to_find: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Turn:
    """The epoch to read, and whether it begins with what is not delivered yet (by GTIDs)."""

    epoch: int
    begins: bool


def turn_at(newest: Epoch | None, configured: int, after_scn: int | None, server: str) -> Turn:
    """Return which epoch a server is of, when capture continues after an SCN.

    `configured` is the setting; one higher than the newest epoch is an operator's decision about
    the server, and where its log is read from. Raises ValueError when there are no more epochs.
    """
    if newest is None or configured > newest.number:
        return Turn(configured, begins=False)
    is_same = newest.server == server
    if after_scn is not None:
        reached = binlog_position(after_scn).epoch
        if reached > newest.number or (is_same and reached == newest.number):
            return Turn(max(newest.number, configured), begins=False)
    number = newest.number if is_same else newest.number + 1
    if number > MAX_EPOCH:
        raise ValueError(f"there are only {MAX_EPOCH} epochs: start again from the beginning")
    # Without anything delivered, the settings say where to begin.
    return Turn(number, begins=after_scn is not None)


def judge_mysql(delivered: str, found: MysqlState) -> Verdict:
    """Judge a MySQL server; raises ValueError for sets that cannot be read."""
    if found.mode.upper() != "ON":
        return Verdict(f"its gtid_mode is {found.mode}")
    missing = MysqlGtidSet.parse(delivered) - MysqlGtidSet.parse(found.executed)
    if missing.intervals:
        return _lacks((str(missing),))
    return Verdict(purged_problem(delivered, found.purged, found.executed))


def judge_mariadb(delivered: str, found: MariadbState) -> Verdict:
    """Judge a MariaDB server; raises ValueError for positions that cannot be read."""
    logged = newest_by_pair(found.logged)
    current = parse_mariadb_position(found.current)
    missing, to_find = [], []
    for domain, (server, number) in parse_mariadb_position(delivered).items():
        if current.get(domain) == (server, number):
            continue
        reached = logged.get((domain, server), 0)
        if reached >= number:
            to_find.append(f"{domain}-{server}-{number}")
            continue
        if not reached:
            _, other = current.get(domain, (0, 0))
            reached = other if other < number else number - 1
        begin = f"{domain}-{server}-{reached + 1}"
        end = f"{domain}-{server}-{number}"
        missing.append(begin if begin == end else f"{begin} to {end}")
    return _lacks(tuple(missing)) if missing else Verdict(to_find=tuple(to_find))


def _lacks(missing: tuple[str, ...]) -> Verdict:
    return Verdict(f"it lacks transactions that were delivered: {', '.join(missing)}", missing)


def newest_by_pair(text: str) -> dict[tuple[int, int], int]:
    """Return the highest number of each domain and server; raises ValueError."""
    found: dict[tuple[int, int], int] = {}
    for part in filter(None, re.sub(r"\s", "", text).split(",")):
        for domain, (server, number) in parse_mariadb_position(part).items():
            found[domain, server] = max(number, found.get((domain, server), 0))
    return found
