"""Sizes, durations and shares as people read them."""

from __future__ import annotations

import pytest

from databus.conf.units import count_text, duration_text, share_text, size_text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (3 << 30, "3.0 GiB"),
        (5 << 50, "5120.0 TiB"),
    ],
)
def test_a_size_has_the_unit_that_fits(size: int, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0123, "12.3 ms"),
        (90, "90 s"),
        (600, "10 min"),
        (9000, "2.5 h"),
        (1e6, "11.6 d"),
    ],
)
def test_a_duration_has_the_unit_that_fits(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (0.5, "0.5"), (999, "999"), (9999, "9999"), (12_345, "12.3k"), (4.5e6, "4.5M")],
)
def test_a_count_is_short(count: float, text: str) -> None:
    assert count_text(count) == text


def test_a_share_is_in_percent() -> None:
    assert share_text(0.456) == "46 %"
