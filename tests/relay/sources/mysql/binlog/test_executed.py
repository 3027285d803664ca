"""What was executed, kept while a log is read, is what the server itself would say."""

from __future__ import annotations

import struct
from uuid import UUID

from hypothesis import given, strategies as st

from databus.relay.sources.mysql.binlog.executed import ExecutedGtids
from databus.relay.sources.mysql.binlog.gtid_set import MysqlGtidSet

ONE, TWO = (str(UUID(int=number)) for number in (1, 2))
GTIDS = st.lists(st.tuples(st.sampled_from([ONE, TWO]), st.integers(1, 30)), max_size=60)


@given(GTIDS)
def test_in_whatever_order_transactions_end_the_set_has_each_of_them(
    gtids: list[tuple[str, int]],
) -> None:
    executed = ExecutedGtids(is_mariadb=False, text="")
    for uuid, number in gtids:
        executed.add(f"{uuid}:{number}")
    whole = MysqlGtidSet.parse(",".join(f"{uuid}:{number}" for uuid, number in gtids))
    assert executed.text is not None
    found = MysqlGtidSet.parse(executed.text)
    assert dict(found.intervals) == dict(whole.intervals)


@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.integers(1, 30), st.integers(0, 9))))
def test_runs_of_the_decoder_are_as_good_as_each_transaction_alone(
    runs: list[tuple[int, int, int]],
) -> None:
    alone, at_once = (ExecutedGtids(is_mariadb=False, text=f"{ONE}:4-6") for _ in range(2))
    for uuid, first, more in runs:
        at_once.add_runs(struct.pack("<16sqq", UUID(int=uuid).bytes, first, first + more))
        for number in range(first, first + more + 1):
            alone.add(f"{UUID(int=uuid)}:{number}")
    assert at_once.text == alone.text


def test_of_mariadb_the_last_transaction_of_each_domain_is_kept() -> None:
    executed = ExecutedGtids(is_mariadb=True, text="0-1-7,3-1-2")
    executed.add("0-2-8")
    executed.add_runs(struct.pack("<II8xqq", 0, 1, 9, 11))
    assert executed.text == "0-1-11,3-1-2"


def test_a_transaction_without_a_gtid_makes_it_unknown() -> None:
    executed = ExecutedGtids(is_mariadb=False, text=f"{ONE}:1-3")
    executed.add_runs(struct.pack("<16sqq", b"", -1, -1))
    executed.add(f"{ONE}:4")
    assert executed.text is None


def test_what_is_handed_over_later_counts_later() -> None:
    executed = ExecutedGtids(is_mariadb=True, text="0-1-7")
    executed.hold("0-1-8")
    assert executed.text == "0-1-7"
    executed.release()
    assert executed.text == "0-1-8"
