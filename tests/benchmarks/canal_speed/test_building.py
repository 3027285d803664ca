"""Building entries alone is measured with windows that have their rows."""

from __future__ import annotations

import pytest

from benchmarks.canal_speed.building import cpu_s_per_million, windows
from databus.relay.serving.canal import entries
from databus.schemas.event.v2 import decode


def test_windows_have_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    body, at, rows = windows(3, 4), 0, 0
    while at < len(body):
        event, at = decode(body, at)
        rows += not event.is_control
    assert rows == 12
    assert cpu_s_per_million("single", 1, rows=1000) > 0
    monkeypatch.setattr(entries, "is_compiled", False)
    assert cpu_s_per_million("bulk", 1, rows=1000) > 0
