"""Runs Canal's stock client on a server, and measures both."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.canal_speed.servers import Serving
from benchmarks.peers.ours import Job
from benchmarks.peers.programs import command_of

CLIENT = "java/canal_client"
_TIMEOUT_S = 900.0
_SAMPLE_S = 0.05


class ClientError(Exception):
    """The client did not read all rows; the text is the end of what it said."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What was measured of one run.

    The client's times are those of the last three quarters of the rows. The server's CPU time is
    that of the same rows (`late_cpu_s`), and that since its process began (`cpu_s`).
    """

    rows: int
    columns: int
    characters: int
    late_rows: int
    late_s: float
    late_cpu_s: float
    client_cpu_s: float
    cpu_s: float
    resident_mb: float
    anonymous_mb: float


def read_all(serving: Serving, job: Job, size: int, folder: Path) -> Reading:
    """Let the client read all rows; raises ClientError."""
    table = job.table.replace(".", r"\.")
    arguments = ("127.0.0.1", str(serving.port), table, str(size), str(job.rows))
    log = folder / "client.log"
    with log.open("wb") as errors, _Memory(serving) as memory:
        before_s = serving.cpu_s
        with subprocess.Popen(
            [*command_of(CLIENT), *arguments], stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process:
            timer = threading.Timer(_TIMEOUT_S, process.kill)
            timer.start()
            assert process.stdout is not None
            told: list[dict[str, Any]] = []
            for line in process.stdout:
                if line.startswith("begun"):
                    before_s = serving.cpu_s
                elif line.startswith("{"):
                    told.append(json.loads(line))
                    after_s = serving.cpu_s
            timer.cancel()
    if len(told) != 2:
        raise ClientError(log.read_text(errors="replace")[-2000:])
    work, times = told
    return Reading(
        rows=job.rows,
        columns=work["columns"],
        characters=work["characters"],
        late_rows=times["rows"],
        late_s=times["seconds"],
        late_cpu_s=after_s - before_s,
        client_cpu_s=times["cpu_seconds"],
        cpu_s=after_s,
        resident_mb=memory.resident_bytes / 1e6,
        anonymous_mb=memory.anonymous_bytes / 1e6,
    )


class _Memory:
    """Looks at a server's memory for the length of a `with`."""

    def __init__(self, serving: Serving) -> None:
        self.resident_bytes = self.anonymous_bytes = 0
        self._serving = serving
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> _Memory:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._is_over.is_set():
            resident, anonymous = self._serving.memory()
            self.resident_bytes = max(self.resident_bytes, resident)
            self.anonymous_bytes = max(self.anonymous_bytes, anonymous)
            time.sleep(_SAMPLE_S)
