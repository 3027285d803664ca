"""A catch-up reads ahead of its slowest reader by so much and no more."""

from __future__ import annotations

from databus.relay.catch_up.read_ahead import FORGOTTEN_AFTER_S, ReadAhead


def test_a_reader_is_where_it_asked_first_until_it_asks_for_what_follows() -> None:
    read_ahead = ReadAhead(100, 0)
    read_ahead.asked(10, 1, now_s=0)
    read_ahead.sent(10, 40)
    read_ahead.sent(40, 90)
    assert (read_ahead.slowest, read_ahead.after_scn) == (10, 1)
    read_ahead.asked(90, 9, now_s=1)
    assert (read_ahead.slowest, read_ahead.after_scn) == (90, 9)


def test_a_reader_that_lost_its_answer_asks_again_from_where_it_was() -> None:
    read_ahead = ReadAhead(100, 0)
    read_ahead.asked(10, 1, now_s=0)
    read_ahead.sent(10, 90)
    read_ahead.asked(10, 1, now_s=1)
    assert (read_ahead.slowest, read_ahead.after_scn) == (10, 1)


def test_a_reader_that_read_a_part_of_its_answer_asks_from_there() -> None:
    read_ahead = ReadAhead(100, 0)
    read_ahead.asked(10, 1, now_s=0)
    read_ahead.sent(10, 90)
    read_ahead.asked(50, 5, now_s=1)
    assert (read_ahead.slowest, read_ahead.after_scn) == (50, 5)


def test_the_slowest_of_several_counts() -> None:
    read_ahead = ReadAhead(100, 0)
    read_ahead.asked(10, 1, now_s=0)
    read_ahead.asked(500, 50, now_s=0)
    read_ahead.sent(500, 900)
    read_ahead.asked(900, 90, now_s=1)
    assert read_ahead.slowest == 10
    assert read_ahead.is_far_ahead(111)
    assert not read_ahead.is_far_ahead(110)
    assert read_ahead.is_far_ahead(61, part=2)


def test_one_that_was_not_heard_of_is_forgotten_unless_it_was_the_last_one() -> None:
    read_ahead = ReadAhead(100, 0)
    read_ahead.asked(10, 1, now_s=0)
    read_ahead.asked(500, 50, now_s=5)
    read_ahead.forget(FORGOTTEN_AFTER_S)
    assert read_ahead.slowest == 500
    read_ahead.forget(FORGOTTEN_AFTER_S + 5)
    assert (read_ahead.slowest, read_ahead.after_scn) == (500, 50)


def test_it_reads_as_far_as_a_proof_needs_that_readers_wait_for() -> None:
    read_ahead = ReadAhead(100, 0)
    read_ahead.asked(10, 1, now_s=0)
    read_ahead.waits_for_proof = True
    assert not read_ahead.is_far_ahead(1 << 40)


def test_what_is_read_before_the_place_that_was_asked_for_counts_for_nobody() -> None:
    ahead = ReadAhead(100, 7)
    assert ahead.after_scn == 7
    assert not ahead.is_far_ahead(1 << 40)
    ahead.reached(5000)
    assert not ahead.is_far_ahead(5100)
    assert ahead.is_far_ahead(5101)
