"""A catch-up reads ahead of its slowest reader by so much and no more."""

from __future__ import annotations

from databus.relay.catch_up.pace import FORGOTTEN_AFTER_S, Pace


def test_a_reader_is_where_it_asked_first_until_it_asks_for_what_follows() -> None:
    pace = Pace(100)
    pace.asked(10, 1, now_s=0)
    pace.sent(10, 40)
    pace.sent(40, 90)
    assert (pace.slowest, pace.after_scn) == (10, 1)
    pace.asked(90, 9, now_s=1)
    assert (pace.slowest, pace.after_scn) == (90, 9)


def test_a_reader_that_lost_its_answer_asks_again_from_where_it_was() -> None:
    pace = Pace(100)
    pace.asked(10, 1, now_s=0)
    pace.sent(10, 90)
    pace.asked(10, 1, now_s=1)
    assert (pace.slowest, pace.after_scn) == (10, 1)


def test_a_reader_that_read_a_part_of_its_answer_asks_from_there() -> None:
    pace = Pace(100)
    pace.asked(10, 1, now_s=0)
    pace.sent(10, 90)
    pace.asked(50, 5, now_s=1)
    assert (pace.slowest, pace.after_scn) == (50, 5)


def test_the_slowest_of_several_counts() -> None:
    pace = Pace(100)
    pace.asked(10, 1, now_s=0)
    pace.asked(500, 50, now_s=0)
    pace.sent(500, 900)
    pace.asked(900, 90, now_s=1)
    assert pace.slowest == 10
    assert pace.is_far_ahead(111)
    assert not pace.is_far_ahead(110)
    assert pace.is_far_ahead(61, part=2)


def test_one_that_was_not_heard_of_is_forgotten_unless_it_was_the_last_one() -> None:
    pace = Pace(100)
    pace.asked(10, 1, now_s=0)
    pace.asked(500, 50, now_s=5)
    pace.forget(FORGOTTEN_AFTER_S)
    assert pace.slowest == 500
    pace.forget(FORGOTTEN_AFTER_S + 5)
    assert (pace.slowest, pace.after_scn) == (500, 50)


def test_it_reads_as_far_as_a_proof_needs_that_readers_wait_for() -> None:
    pace = Pace(100)
    pace.asked(10, 1, now_s=0)
    pace.waits_for_proof = True
    assert not pace.is_far_ahead(1 << 40)
