"""Frames of strangers; the long form is `python -m benchmarks.canal_clients.fuzz`."""

from __future__ import annotations

from benchmarks.canal_clients.fuzz import SHORT_FRAMES, measure


def test_malformed_frames_harm_nobody_and_strangers_get_nothing() -> None:
    found = measure(SHORT_FRAMES, 7)
    assert found.connections == SHORT_FRAMES / 5
    assert found.rows > 0
    assert (found.has_died, found.subscribed_strangers, found.lost) == (False, 0, 0)
    assert found.grown_mib < 64
