"""Requests of strangers; the long form is `python -m benchmarks.ptubes_clients.fuzz`."""

from __future__ import annotations

from benchmarks.ptubes_clients.fuzz import SHORT_REQUESTS, measure


def test_mangled_requests_harm_nobody_and_get_no_table_that_is_not_served() -> None:
    found = measure(SHORT_REQUESTS, 7)
    assert found.rows > 0
    assert found.subscribed > 0
    assert (found.has_died, found.defects, found.lost, found.closed_sessions) == (False, 0, 0, 0)
    assert found.grown_mib < 64
