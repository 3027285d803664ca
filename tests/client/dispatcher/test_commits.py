"""Which checkpoint an iteration may write."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, strategies as st

from databus.client.dispatcher.commits import Commits
from databus.schemas.checkpoint import Checkpoint


def at(scn: int) -> Callable[[], Checkpoint]:
    return lambda: Checkpoint.at(scn)


def scn_of(made: Callable[[], Checkpoint] | None) -> int | None:
    return None if made is None else made().window_scn


def test_automatically_a_window_is_committed_by_passing_it() -> None:
    commits = Commits(is_automatic=True)
    commits.yielded(at(1))
    assert scn_of(commits.passed(at(1))) == 1
    assert scn_of(commits.passed(at(2))) == 2, "an empty window"


def test_by_hand_nothing_moves_past_a_window_that_is_not_committed() -> None:
    commits = Commits(is_automatic=False)
    commits.yielded(at(1))
    assert commits.passed(at(1)) is None
    assert commits.passed(at(2)) is None, "an empty window behind it"
    assert scn_of(commits.commit()) == 2, "the empty window needs no commit of its own"
    assert scn_of(commits.passed(at(3))) == 3


def test_a_window_that_is_committed_early_leaves_the_newer_ones() -> None:
    commits = Commits(is_automatic=False)
    numbers = [commits.yielded(at(scn)) for scn in (10, 20, 30)]
    assert scn_of(commits.commit(numbers[1])) == 20
    assert commits.commit(numbers[0]) is None, "it never goes back"
    assert commits.commit(numbers[1]) is None
    assert scn_of(commits.commit(numbers[2])) == 30


@given(st.lists(st.sampled_from(["window", "empty", "commit", "commit oldest"]), max_size=40))
def test_a_checkpoint_never_covers_what_is_not_committed_and_never_goes_back(
    steps: list[str],
) -> None:
    commits = Commits(is_automatic=False)
    scn, kept, waiting = 0, 0, []
    for step in steps:
        made = None
        if step == "window":
            scn += 1
            waiting.append((commits.yielded(at(scn)), scn))
            made = commits.passed(at(scn))
        elif step == "empty":
            scn += 1
            made = commits.passed(at(scn))
        elif step == "commit":
            made, waiting = commits.commit(), []
        elif waiting:
            made = commits.commit(waiting.pop(0)[0])
        if (found := scn_of(made)) is not None:
            assert found >= kept
            kept = found
        assert all(kept < its_scn for _, its_scn in waiting)
        if not waiting:
            assert kept == scn, "all is committed"
