"""What the code of a sink prints, as lines of a log."""

from __future__ import annotations

import logging
import os
import time

import pytest

from databus.client.sinks.isolated.output import EVERY_S, MOST_LINES, OutputLog, PrintedLines
from tests import PATIENCE_S


def test_lines_are_cut_where_they_end_however_they_come() -> None:
    lines = PrintedLines()
    assert list(lines.take(b"one\ntw", 0)) == ["one"]
    assert list(lines.take(b"o\nthr\xff", 0)) == ["two"]
    assert list(lines.end()) == ["thr\ufffd"]


def test_after_a_hundred_lines_the_rest_is_counted() -> None:
    lines = PrintedLines()
    many = b"".join(b"line %d\n" % number for number in range(MOST_LINES + 50))
    assert len(list(lines.take(many, 0))) == MOST_LINES
    assert lines.is_full
    assert list(lines.take(b"more\n", EVERY_S / 2)) == []
    assert list(lines.take(b"later\n", EVERY_S)) == [
        "(51 lines more, which are not logged)",
        "later",
    ]
    assert not lines.is_full


def test_a_line_without_end_takes_no_memory() -> None:
    lines = PrintedLines()
    for _ in range(100):
        assert list(lines.take(b"x" * 65536, 0)) == []
    (line,) = lines.take(b"\n", 0)
    assert len(line) == 1000


def test_a_pipe_that_another_process_keeps_open_holds_up_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reading, writing = os.pipe()
    with caplog.at_level(logging.WARNING):
        log = OutputLog("a", os.fdopen(reading, "rb", buffering=0))
        os.write(writing, b"hello\n")
        began_s = time.monotonic()
        log.end()
    os.close(writing)
    assert time.monotonic() - began_s < PATIENCE_S
    assert [one.getMessage() for one in caplog.records] == ["a: hello"]
