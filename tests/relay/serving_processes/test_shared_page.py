"""The page that the processes of a relay share."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from databus.relay.serving_processes.shared_page import SharedPage, make_page


@pytest.fixture
def pages() -> Iterator[tuple[SharedPage, SharedPage]]:
    """One page, mapped twice as by two processes, of two physical sources."""
    fd = make_page()
    one, other = SharedPage(fd, 2), SharedPage(fd, 2)
    os.close(fd)
    yield one, other
    one.close()
    other.close()


def test_what_one_process_stores_the_other_sees(pages: tuple[SharedPage, SharedPage]) -> None:
    one, other = pages
    one.beat(11)
    one.change(0)
    one.change(1)
    assert one.change(1) == 2
    other.child_beat(0, 12)
    other.child_beat(7, 13)
    assert (other.beat_ns, other.revision(0), other.revision(1)) == (11, 1, 2)
    assert (one.child_beat_ns(0), one.child_beat_ns(7), one.child_beat_ns(1)) == (12, 13, 0)


def test_no_change_is_lost_between_threads(pages: tuple[SharedPage, SharedPage]) -> None:
    one, other = pages
    found: list[int] = []

    def change() -> None:
        found.extend([one.change(1) for _ in range(500)])

    threads = [threading.Thread(target=change) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(1, 2001))
    assert other.revision(1) == 2000
