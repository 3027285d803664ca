"""The rules by which attacks are judged: each kind of harm must be seen and named."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.adversity.judge import Cause, Evidence, Look, hangs, judge, reasons_to_think_well
from benchmarks.adversity.monitor import figures_of
from benchmarks.adversity.writer import id_of, note_of, wrong_row
from benchmarks.torture.log import Delivery


def window(tx: int, *rows: tuple[int, int], kind: str = "window") -> Delivery:
    return Delivery(1, kind, tx * 10, [(tx, row, of) for row, of in rows or [(1, 1)]])  # type: ignore[arg-type]


def start(run: int = 1, checkpoint: int = -1) -> Delivery:
    return Delivery(run, "start", checkpoint, [])


def problems(*deliveries: Delivery, committed: int | None = None) -> str:
    return "; ".join(judge(Evidence([start(), *deliveries], committed)))


def test_everything_in_order_holds() -> None:
    assert problems(window(1), window(2, (1, 2), (2, 2)), window(3), committed=3) == ""


def test_a_gap_is_a_loss_whether_all_was_to_come_or_not() -> None:
    assert "transaction 3 came after 1" in problems(window(1), window(3))
    assert "never came: 2" in problems(window(1), window(3), committed=3)


def test_what_never_came_is_a_loss_only_where_all_was_to_come() -> None:
    assert problems(window(1)) == ""
    assert "1 transactions never came: 2" in problems(window(1), committed=2)


def test_a_torn_window_is_seen() -> None:
    assert "has rows" in problems(window(1, (2, 2)), committed=1)


def test_a_window_that_comes_again_unannounced_is_seen() -> None:
    assert "went back" in problems(window(1), window(1), committed=1)


def test_a_window_that_comes_again_after_a_restart_is_none_of_it() -> None:
    again = [start(2, 10), window(2), start(3, 10), window(2)]
    assert problems(window(1), *again, committed=2) == ""


def test_a_row_that_the_consumer_called_wrong_is_seen() -> None:
    assert "wrong row" in problems(Delivery(1, "problem", 5, [], "wrong row {}"))


def test_rows_of_pages_must_all_be_there_in_the_end() -> None:
    pages = [window(1, kind="page"), window(2, (1, 2), kind="page")]
    assert problems(*pages, window(2, (2, 2)), committed=2) == ""
    assert "in parts: [2]" in problems(*pages, committed=2)
    assert "never came: [1]" in problems(*pages[1:], window(2, (2, 2)), committed=2)


def test_a_process_that_ended_by_itself_and_a_vain_wait_are_problems() -> None:
    evidence = Evidence(ended={"relay": 1}, broken=["waited in vain"])
    assert judge(evidence) == ["relay ended with 1", "waited in vain"]


WELL = Look(
    20.0,
    "relay",
    200,
    "{}",
    {
        'databus_relay_source_state{physical_source="shop",state="running"}': 1.0,
        'databus_relay_connected{physical_source="shop"}': 1.0,
        'databus_relay_log_behind_seconds{physical_source="shop"}': 0.0,
    },
    {
        "physicalSources": [{"state": "running", "log": {"behindS": 0}}],
        "clients": [{"state": "live"}],
    },
)
ILL = Look(
    20.0,
    "relay",
    503,
    "{}",
    {
        'databus_relay_source_state{physical_source="shop",state="running"}': 0.0,
        'databus_relay_source_state{physical_source="shop",state="unreachable"}': 1.0,
        'databus_relay_log_behind_seconds{physical_source="shop"}': 12.0,
    },
    {"physicalSources": [{"state": "unreachable", "log": {"behindS": None}}], "clients": []},
)
CAUSE = Cause("the database is dead", 0.0, 30.0, 10.0, ("relay",))


def test_each_way_to_look_well_while_something_is_the_matter_is_false_health() -> None:
    found = judge(Evidence(looks=[WELL], causes=[CAUSE]))
    assert len(found) == 7
    assert all(text.startswith("false health: the database is dead for 20 s") for text in found)


def test_who_says_what_is_the_matter_is_believed() -> None:
    assert list(reasons_to_think_well(ILL)) == []
    assert judge(Evidence(looks=[ILL], causes=[CAUSE])) == []


@pytest.mark.parametrize("at_s", [5.0, 31.0])
def test_before_it_had_to_be_seen_and_after_it_was_over_all_may_look_well(at_s: float) -> None:
    well = dataclasses.replace(WELL, at_s=at_s)
    assert judge(Evidence(looks=[well, ILL], causes=[CAUSE])) == []


def test_a_cause_that_nobody_looked_at_proves_nothing() -> None:
    assert "nobody looked at the relay" in judge(Evidence(causes=[CAUSE]))[0]


def test_a_client_without_lag_behind_a_dead_database_looks_well() -> None:
    figures = {'databus_client_lag_seconds{registration="default"}': 0.0}
    assert list(reasons_to_think_well(Look(0, "client", 503, "", figures)))


def test_a_process_that_does_not_answer_for_long_hangs() -> None:
    silent = [Look(float(at), "relay", 0, "") for at in range(60)]
    assert "did not answer" in hangs(silent, "relay", 0, 60)
    assert hangs(silent[:40], "relay", 0, 60) == ""


def test_figures_are_read_with_their_labels() -> None:
    text = '# HELP a b\ndatabus_a{x="1 2"} 3.0\ndatabus_b NaN\nother 4\n'
    assert figures_of(text)['databus_a{x="1 2"}'] == 3.0


def test_a_row_says_by_itself_whether_it_is_as_it_was_written() -> None:
    row = {"id": id_of(7, 2), "tx": 7, "tx_row": 2, "tx_rows": 3, "note": note_of(5, 7, 2, 90)}
    assert wrong_row(5, row) == ""
    assert wrong_row(5, row | {"id": 1})
    assert wrong_row(5, row | {"note": note_of(5, 7, 1, 90)})
    assert wrong_row(5, {"id": 1})
