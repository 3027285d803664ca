"""The database, a relay with every rung, a bootstrap pair and five consumers, as processes."""

from __future__ import annotations

import json

from benchmarks.bootstrap_torture.log import GuardedLog
from benchmarks.ladder.rungs import ARCHIVE_KEEPS, LOG_KEEPS, Rung
from benchmarks.torture.log import Log
from benchmarks.torture.shared_number import SharedNumber
from benchmarks.torture.workload import SOURCES, TABLES
from databus.demo.processes import Child, python_module
from databus.demo.stage import Stage

FETCH_BYTES = 256 << 10
STOP_S = 30.0


class Reader:
    """One consumer: a client process with a folder of its own for its tables and its log."""

    def __init__(self, stage: LadderStage, rung: Rung) -> None:
        self.rung = rung
        self.folder = stage.folder / f"consumer-{rung}"
        self.folder.mkdir()
        self._applied = SharedNumber(self.folder / "applied")
        where = ["--relay", stage.url, "--folder", self.folder]
        module = "benchmarks.torture.client"
        if rung is Rung.BOOTSTRAP:
            module = "benchmarks.bootstrap_torture.client"
            where += ["--bootstrap-server", stage.bootstrap_url, "--fetch-bytes", FETCH_BYTES]
        self.child: Child = stage.child(self.folder.name, python_module(module, *where))

    @property
    def applied(self) -> int:
        """The number of the newest transaction that it has applied."""
        return self._applied.get()

    def leave(self) -> None:
        """Stop it; its checkpoint is after what it has applied."""
        self.child.stop(STOP_S)

    def log(self) -> Log:
        """Open its tables and its log, to read; the caller closes them."""
        file = self.folder / "client.db"
        return GuardedLog(file) if self.rung is Rung.BOOTSTRAP else Log(file)

    def close(self) -> None:
        """Close the shared number."""
        self._applied.close()


class LadderStage(Stage):
    """A stage whose relay has a log, an archive and a catch-up, in sizes of its ring."""

    def __init__(self, ring_bytes: int) -> None:
        creates = [table.create("mysql") for table in TABLES]
        super().__init__("mysql", creates, SOURCES, ring_bytes=str(ring_bytes))
        self.ring_bytes = ring_bytes
        self.readers: dict[Rung, Reader] = {}

    def __enter__(self) -> LadderStage:
        super().__enter__()
        with self.settings_file.open("a", encoding="utf-8") as file:
            file.write(self._history())
        return self

    def make_readers(self) -> None:
        """Make the consumers; the bootstrap pair runs."""
        self.readers = {rung: Reader(self, rung) for rung in Rung}

    def close(self) -> None:
        """Stop everything and remove the folder."""
        for reader in self.readers.values():
            reader.close()
        super().close()

    def stored_scn(self) -> int:
        """Return the newest SCN that the bootstrap pair has stored."""
        status = json.loads(self.bootstrap_status() or "{}")
        return int(status["physicalSources"]["shop"]["scn"]) if status else -1

    def _history(self) -> str:
        segment_bytes = max(64 << 10, self.ring_bytes // 2)
        return f"""
catch_ups = 1

[physical_sources.log]
dir = {json.dumps(str(self.folder / "log"))}
segment_bytes = {segment_bytes}
compression = "none"
sync_ms = 10.0
retention_bytes = {LOG_KEEPS * self.ring_bytes}
archive = {json.dumps((self.folder / "archive").as_uri())}
archive_retention_bytes = {ARCHIVE_KEEPS * self.ring_bytes}
"""
