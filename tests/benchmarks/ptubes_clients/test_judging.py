"""What is judged of the stock client of Ptubes."""

from __future__ import annotations

from benchmarks.ptubes_clients.judging import (
    Findings,
    Floor,
    Seen,
    figures_of,
    floor_of,
    judge,
)
from benchmarks.shared.every_type import Change

MADE = [Change("INSERT", n, 0) for n in range(6)]
CHANGED = Change("UPDATE", 5, 1)
WANTED = [*MADE, CHANGED]


def seen(number: int, instance: str = "one", wrong: tuple[str, ...] = ()) -> Seen:
    return Seen(instance, WANTED[number], (1000, 1, 100, number), wrong)


def test_what_is_lost_again_and_wrong_is_counted() -> None:
    found = judge([seen(0), seen(1), seen(0, "two"), seen(3, wrong=("price",))], WANTED, [])
    assert (found.lost, found.again, found.wrong_values) == (4, 1, 1)
    assert found.again_before_checkpoint == found.out_of_order == 0
    assert len(found.examples) == 4  # one value, three of the lost


def test_what_comes_again_though_a_checkpoint_has_it_is_counted() -> None:
    floors = [Floor(3, (1000, 1, 100, 1))]
    again = [seen(0), seen(1), seen(2), seen(1), seen(2)]
    assert judge(again, WANTED, floors).again_before_checkpoint == 1
    assert judge(again, WANTED, []).again_before_checkpoint == 0


def test_a_change_after_a_later_one_of_its_key_is_out_of_order_unless_it_comes_again() -> None:
    assert judge([seen(6), seen(5)], WANTED, []).out_of_order == 1
    assert judge([seen(5), seen(6), seen(5), seen(6)], WANTED, []).out_of_order == 0
    assert judge([seen(4), seen(3)], WANTED, []).out_of_order == 0


def test_a_client_begins_at_the_oldest_checkpoint() -> None:
    places = {"timestamp": 9, "binlogFile": 1, "binlogOffset": 70, "eventIndex": 2}
    normal = {"checkpointMode": "NORMAL"} | places
    assert floor_of([normal, normal | {"binlogOffset": 60}]) == (9, 1, 60, 2)
    assert floor_of([normal, normal | {"checkpointMode": "EARLIEST"}]) == ()
    assert floor_of([]) == ()


def test_a_loss_misses_its_figure() -> None:
    counts = judge([seen(0)], WANTED, [])
    found = Findings("x", 7, **counts._asdict(), shares={}, taken_over_s=1.0, seconds=2.0)
    assert found.problems == 6
    assert [figure.is_met for figure in figures_of(found)][:4] == [False, True, True, True]
