"""The bootstrap torture's own checks: each broken promise must be seen and named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.bootstrap_torture.checks import BootstrapFindings, check_log, check_tables
from benchmarks.bootstrap_torture.client import floor_of
from benchmarks.bootstrap_torture.filling import fill
from benchmarks.bootstrap_torture.log import GuardedLog
from benchmarks.bootstrap_torture.run import SPANS, Plan
from benchmarks.bootstrap_torture.times import Rate
from benchmarks.torture.kills import plan_kills
from benchmarks.torture.log import Change, Delivery
from benchmarks.torture.workload import STAMPS, TABLES, Workload
from databus.demo.databases import Database
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode

SNAPSHOT, CATCHUP = ConsumptionMode.SNAPSHOT, ConsumptionMode.CATCHUP
ONLINE = ConsumptionMode.ONLINE


def start(run: int, checkpoint: int = -1, mode: str = "") -> Delivery:
    return Delivery(run, "start", checkpoint, [], mode)


def mode(text: str, scn: int = -1) -> Delivery:
    return Delivery(1, "mode", scn, [], text)


def page(scn: int) -> Delivery:
    return Delivery(1, "page", scn, [], "100")


def one(tx: int) -> Delivery:
    return Delivery(1, "window", tx * 10, [(tx, 1, 1)])


BOOTSTRAPPED = [start(1), mode(ONLINE, 0), mode(SNAPSHOT, 0), page(50), mode(CATCHUP, 50), page(60)]
LIVE = [*BOOTSTRAPPED, mode(ONLINE, 60)]


def problems(deliveries: Sequence[Delivery], committed: int) -> list[str]:
    findings = BootstrapFindings()
    check_log(deliveries, committed, findings)
    return findings.problems


def test_a_bootstrap_and_windows_from_where_it_ends_have_no_problem() -> None:
    assert problems([*LIVE, one(7), one(8), start(2, 70, ONLINE), one(8), one(9)], 9) == []


def test_a_client_that_starts_again_in_mid_phase_has_no_problem() -> None:
    again = [start(2, 0, SNAPSHOT), page(50), mode(CATCHUP, 50), page(60), mode(ONLINE, 60)]
    assert problems([*BOOTSTRAPPED[:5], *again, one(7)], 7) == []


BROKEN: list[tuple[str, Sequence[Delivery], str]] = [
    ("no bootstrap", [start(1), mode(ONLINE), one(1), one(2), one(3)], "there was no bootstrap"),
    ("a bootstrap without end", [*BOOTSTRAPPED, one(9)], "the last checkpoint's mode is BOOT"),
    ("a mode left out", [*BOOTSTRAPPED[:4], mode(ONLINE), one(9)], "ONLINE_CONSUMPTION after BOO"),
    ("a catch-up from nowhere", [start(1), mode(ONLINE), mode(CATCHUP)], "CATCHUP after ONLINE"),
    ("a hole in the live stream", [*LIVE, one(7), one(9)], "transaction 9 came after 7"),
    ("a hole after a start", [*LIVE, one(7), start(2, 70, ONLINE), one(9)], "9 came, 8 did not"),
    ("a window of what the bootstrap brought", [*LIVE, start(2, 60, ONLINE), one(6)], "before"),
    ("no end", [*LIVE, one(7)], "the newest transaction, 9, never came"),
]


@pytest.mark.parametrize(
    ("log", "named"), [case[1:] for case in BROKEN], ids=[c[0] for c in BROKEN]
)
def test_a_broken_promise_is_named(log: Sequence[Delivery], named: str) -> None:
    assert any(named in problem for problem in problems(log, 9)), problems(log, 9)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[GuardedLog]:
    opened = GuardedLog(tmp_path / "client.db")
    opened.start(-1)
    yield opened
    opened.close()


def change(scn: int, key: int = 1, is_delete: bool = False) -> Change:
    row = {"id": key, "owner": f"of {scn}", "balance": 5} | dict.fromkeys(STAMPS, 1)
    return Change("shop.accounts", is_delete, row, None, scn, key)


def said(log: GuardedLog) -> list[str]:
    return [line.text for line in log.deliveries() if line.kind == "problem"]


def test_a_key_that_goes_back_is_named(log: GuardedLog) -> None:
    log.apply_page(50, [change(40), change(40, key=2)])
    log.apply(60, [change(60)])
    log.apply_page(50, [change(50)])
    assert said(log) == ["shop.accounts 1 of scn 50 came after that of scn 60, unannounced"]


def test_a_deleted_row_that_comes_back_is_named(log: GuardedLog) -> None:
    log.apply_page(50, [change(40), change(55, is_delete=True)])
    log.apply_page(50, [change(40)])
    assert len(said(log)) == 1
    assert log.counts()["deleted_after_it_came"] == 1


def test_what_an_announced_rollback_brings_again_is_no_problem(log: GuardedLog) -> None:
    log.apply(60, [change(60)])
    log.apply(70, [change(70)])
    log.rollback(50)
    log.apply(60, [change(60)])
    log.apply(70, [change(70)])
    assert said(log) == []


def test_what_a_start_brings_again_from_after_its_checkpoint_is_no_problem(tmp_path: Path) -> None:
    for checkpoint, first in ((-1, 60), (55, 60), (65, 60)):
        log = GuardedLog(tmp_path / "client.db")
        log.start(checkpoint)
        log.apply(first, [change(first)])
        log.apply(70, [change(70)])
        found = said(log)
        log.close()
    assert found == [
        "shop.accounts 1 of scn 60 came after that of scn 70, and before the checkpoint 65"
    ]


def test_nothing_before_the_checkpoint_may_come_again() -> None:
    snapshot = Checkpoint(SNAPSHOT, 60, bootstrap_since_scn=50, bootstrap_start_scn=70)
    assert floor_of(None) == -1
    assert floor_of(snapshot) == 50
    assert floor_of(Checkpoint(CATCHUP, 80, 3)) == 79
    assert floor_of(Checkpoint.at(90)) == 90


def test_tables_are_compared_row_by_row(tmp_path: Path, log: GuardedLog) -> None:
    database = Database("sqlite", f"sqlite:{tmp_path / 'shop.db'}")
    session = database.connect()
    for table in TABLES:
        session.execute(table.create("sqlite"))
    fill(database, 1, 1000, lambda _: None)
    findings = BootstrapFindings()
    assert check_tables(log, session, findings) == 1000
    assert findings.problem_count == 1000
    session.close()


def test_the_rows_before_are_the_same_whatever_happens_next() -> None:
    one, other = Workload(1), Workload(2)
    assert list(one.keys_before(40)) == list(other.keys_before(40))


def test_each_process_is_killed_while_it_has_work() -> None:
    plan = plan_kills(1, SPANS, 10)
    assert {kill.victim for kill in plan} == set(SPANS)
    assert all(SPANS[k.victim][0] <= k.at < SPANS[k.victim][1] for k in plan)


def test_a_small_source_is_read_slowly_and_a_large_one_as_fast_as_it_goes() -> None:
    assert Plan("sqlite", 5_000, 1, 1, 100).seeding == {
        "chunk_rows": 25,
        "most_rows_per_s": 1250,
    }
    assert Plan("sqlite", 10**6, 1, 1, 100).seeding == {}


def test_a_rate_tells_its_worst_ten_seconds() -> None:
    rate = Rate(1000, 50.0)
    for number, now_s in ((2000, 55.0), (4000, 60.0), (4100, 70.0), (8000, 75.0)):
        rate.take(number, now_s)
    assert str(rate) == "280 transactions/s, 10 in the worst 10 s"
