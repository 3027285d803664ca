"""A client whose relay's ring was damaged before what it has yet to read."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from databus.relay.ring import recovery as ring_recovery
from databus.schemas.errors import ScnNotFoundError
from tests import PATIENCE_S
from tests.client.test_with_relay import SOURCE, RunningRelay, database, insert, make_client
from tests.relay.ring.test_check import flip, old_byte

__all__ = ["database"]

ROWS, PART = 300, 50
TAIL = (sys.executable, "-m", "databus.cli.main", "tail")


@pytest.fixture
def ring(database: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ring of which a restart looks at the end only, and a byte in the middle is another."""
    monkeypatch.setattr(ring_recovery, "_CHECKED_BYTES", 1)
    with RunningRelay(tmp_path, ring_bytes=1 << 18) as relay:
        client = make_client(relay, start="earliest")
        with client:
            windows = client.windows(SOURCE)
            # Rows that come between two polls share a window: so part after part is read.
            for first in range(1, ROWS, PART):
                insert(database, first, PART, "tea" * 50)
                while next(windows).events[-1].wire_key != first + PART - 1:
                    pass
    path = tmp_path / "relay" / "shop.ring"
    flip(path, old_byte(path, 0.5))
    return path


def test_a_client_ends_at_once_before_the_damage_with_the_file_and_the_way_on(
    ring: Path, tmp_path: Path
) -> None:
    keys: list[int | bytes] = []
    with RunningRelay(tmp_path, ring_bytes=1 << 18) as relay:
        client = make_client(relay, start="earliest")
        with pytest.raises(ScnNotFoundError) as caught, client:
            keys.extend(
                event.wire_key for window in client.windows(SOURCE) for event in window.events
            )
        ended = subprocess.run(
            [*TAIL, SOURCE, "--relay", relay.url, "--from", "earliest", "--json"],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    assert keys == list(range(1, len(keys) + 1))
    assert 0 < len(keys) < ROWS
    assert str(ring) in str(caught.value)
    assert "bootstrap_servers" in str(caught.value)
    assert ended.returncode == 1
    assert ended.stdout.count("\n") == len(keys)
    assert str(ring) in ended.stderr
