"""A consumer as a process: takes as long for a row as a file says at the moment.

    python -m tests.page.consumer_process SETTINGS.json PACE

SETTINGS are a client's, and `sources`; PACE holds seconds a row.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from databus.client import DatabusClient
from databus.client.consumer import Consumer, DataEvent


class Pacing(Consumer):
    """Sleeps for each row, live or old."""

    def __init__(self, pace: Path) -> None:
        self._pace = pace

    def on_data_event(self, event: DataEvent) -> None:
        """Sleep; not on when the file says so meanwhile."""
        end = time.monotonic() + self._pace_s()
        while time.monotonic() < end and self._pace_s():
            time.sleep(min(0.1, max(0.0, end - time.monotonic())))

    def on_bootstrap_event(self, event: DataEvent) -> None:
        """Sleep as long."""
        self.on_data_event(event)

    def _pace_s(self) -> float:
        return float(self._pace.read_text("utf-8") or 0)


def main(settings: Path, pace: Path) -> None:
    """Run until killed."""
    options = json.loads(settings.read_text("utf-8"))
    sources = options.pop("sources")
    client = DatabusClient(**options)
    client.register(Pacing(pace), sources)
    client.run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
