"""Whether capture may go on at another server: only if nothing is lost and nothing comes twice."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from databus.relay.sources.epochs import Epoch, epoch_at
from databus.relay.sources.mysql.binlog.gtid_set import MysqlGtidSet
from databus.relay.sources.mysql.server.succession import (
    MariadbState,
    MysqlState,
    Turn,
    judge_mariadb,
    judge_mysql,
    turn_at,
)
from databus.schemas.scn import BinlogPosition

ONE, TWO = (str(UUID(int=number)) for number in (1, 2))
GTIDS = st.sets(st.tuples(st.sampled_from([ONE, TWO]), st.integers(1, 9)))


def text(gtids: set[tuple[str, int]]) -> str:
    joined = ",".join(f"{uuid}:{number}" for uuid, number in sorted(gtids))
    return str(MysqlGtidSet.parse(joined))


def epoch(number: int, server: str, first: tuple[int, int] = (1, 4), after_scn: int = -1) -> Epoch:
    scn = BinlogPosition(number, *first).to_scn()
    return Epoch(number, server, "mysql://a@b", scn, after_scn, "bin.000001", 4, None, 0)


@given(GTIDS, GTIDS, GTIDS)
def test_mysql_goes_on_if_and_only_if_all_delivered_are_there_and_none_of_the_rest_is_purged(
    delivered: set[tuple[str, int]], executed: set[tuple[str, int]], purged: set[tuple[str, int]]
) -> None:
    purged &= executed
    verdict = judge_mysql(text(delivered), MysqlState("ON", text(executed), text(purged)))
    assert (not verdict.problem) == (delivered <= executed and purged <= delivered)
    assert set(verdict.missing) == ({text(delivered - executed)} if delivered - executed else set())


def test_a_mysql_without_gtids_proves_nothing() -> None:
    assert judge_mysql("", MysqlState("OFF", "", "")).problem == "its gtid_mode is OFF"


def judged(delivered: str, logged: str, current: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    verdict = judge_mariadb(delivered, MariadbState(logged, current))
    assert bool(verdict.problem) == bool(verdict.missing)
    return verdict.missing, verdict.to_find


@pytest.mark.parametrize(
    ("logged", "current", "missing", "to_find"),
    [
        ("0-1-100", "0-1-100", (), ()),
        ("0-1-100,0-2-101", "0-2-101", (), ("0-1-100",)),
        ("0-1-97", "0-1-97", ("0-1-98 to 0-1-100",), ()),
        # It took writes of its own under the same numbers.
        ("0-1-97,0-2-140", "0-2-140", ("0-1-98 to 0-1-100",), ()),
        ("0-2-99", "0-2-99", ("0-1-100",), ()),
        ("0-2-90", "0-2-90", ("0-1-91 to 0-1-100",), ()),
        # A copy of a backup whose log is empty yet.
        ("", "0-1-100", (), ()),
        ("", "0-1-101", ("0-1-100",), ()),
        ("", "", ("0-1-1 to 0-1-100",), ()),
        ("0-1-100,7-9-1", "0-1-100,7-9-1", (), ()),
    ],
)
def test_a_mariadb_must_have_the_very_transaction_that_was_delivered_last(
    logged: str, current: str, missing: tuple[str, ...], to_find: tuple[str, ...]
) -> None:
    assert judged("0-1-100", logged, current) == (missing, to_find)


def test_each_domain_of_a_mariadb_counts() -> None:
    assert judged("0-1-5,1-1-9", "0-1-5,1-1-7", "0-1-5,1-1-7") == (("1-1-8 to 1-1-9",), ())


def test_the_epoch_rises_with_the_server_and_never_falls() -> None:
    scn = BinlogPosition(3, 7, 100).to_scn()
    before = epoch(3, "a")
    assert turn_at(None, 0, scn, "a") == Turn(0, begins=False)
    assert turn_at(before, 0, scn, "a") == Turn(3, begins=False)
    assert turn_at(before, 0, scn, "b") == Turn(4, begins=True)
    assert turn_at(before, 4, scn, "b") == Turn(4, begins=False)
    # Nothing of the new server was delivered yet, or the ring was removed.
    assert turn_at(epoch(4, "b"), 0, scn, "b") == Turn(4, begins=True)
    assert turn_at(epoch(4, "b"), 0, scn, "a") == Turn(5, begins=True)
    assert turn_at(before, 0, None, "a") == Turn(3, begins=False)
    assert turn_at(before, 0, None, "b") == Turn(4, begins=False)
    with pytest.raises(ValueError, match="only 255 epochs"):
        turn_at(epoch(255, "a"), 0, BinlogPosition(255, 1, 4).to_scn(), "b")


def test_a_place_without_an_epoch_is_looked_up_newest_first() -> None:
    end_of_first = BinlogPosition(0, 12, 900).to_scn()
    epochs = (epoch(0, "a", (5, 1000)), epoch(1, "b", (3, 50), end_of_first))
    newest = BinlogPosition(1, 6, 300).to_scn()
    assert epoch_at(epochs, "bin.000006", (6, 200), newest) is epochs[1]
    assert epoch_at(epochs, "bin.000003", (3, 49), newest) is epochs[0]
    assert epoch_at(epochs, "bin.000010", (10, 7), newest) is epochs[0]
    assert epoch_at(epochs, "bin.000013", (13, 7), newest) is None
    assert epoch_at(epochs, "other.000006", (6, 200), newest) is None
