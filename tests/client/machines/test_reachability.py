"""Whether a registration hears of its servers, by a clock of the test's own."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from databus.client.machines.reachability import Reachability, Silence

BOTH = ("http://a", "http://b")


@dataclass
class Time:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def reachability(time: Time) -> Reachability:
    found = Reachability(time)
    time.now_s = 110.0
    found.answered()
    time.now_s = 120.0
    return found


def test_one_of_two_that_fails_is_no_silence_and_both_are_since_somebody_answered(
    reachability: Reachability,
) -> None:
    reachability.failed("http://a", "refused")
    assert reachability.silence(BOTH, None) is None
    reachability.failed("http://b", "timed out")
    assert reachability.silence(BOTH, None) == Silence(110.0, "timed out")


def test_an_answer_ends_the_silence(reachability: Reachability) -> None:
    for server in BOTH:
        reachability.failed(server, "refused")
    reachability.answered()
    assert reachability.silence(BOTH, None) is None
    reachability.failed("http://a", "refused")
    assert reachability.silence(BOTH, None) is None


def test_what_others_know_counts_only_where_nothing_was_answered_since(
    reachability: Reachability, time: Time
) -> None:
    others = Silence(115.0, "no answer within 2 s")
    assert reachability.silence(BOTH, others) == Silence(110.0, "no answer within 2 s")
    reachability.answered()
    assert reachability.silence(BOTH, others) is None


def test_without_a_server_to_ask_nothing_is_said(reachability: Reachability) -> None:
    assert reachability.silence((), None) is None


def test_it_has_heard_of_nobody_before_the_first_answer(time: Time) -> None:
    reachability = Reachability(time)
    assert not reachability.has_heard
    reachability.failed("http://a", "refused")
    assert reachability.silence(["http://a"], None) == Silence(100.0, "refused")
