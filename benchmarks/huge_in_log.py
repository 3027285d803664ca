"""One huge transaction through a small ring into its relay log, by a relay that is killed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.capture.log import Stretch
from benchmarks.capture.readers import PHYSICAL, keys_held
from benchmarks.shared.report import Figure, Target
from databus.demo.private_mariadb import PrivateMariaDB
from databus.relay.log.directory import find_segments
from databus.relay.log.reader import LogReader, SegmentTuple
from databus.relay.sources.mysql.replication.chunk_reader import CHUNK_BYTES, CHUNKS
from databus.schemas.scn import BinlogPosition
from tests.promises.running import RunningRelay, running, wait_until

RING_BYTES = 64 << 20
SMALL_SHARE = 8  # the ring holds at most this fraction of the transaction
SEED = 22
SAMPLE_S = 0.02
PATIENCE_S = 900.0
NEAR_BYTES = 32 << 20
READ_AHEAD_BYTES = CHUNKS * CHUNK_BYTES  # in any bulk load, which an idle relay has not


@dataclass
class IntoLog:
    """What it took, and all problems."""

    seconds: float = 0.0
    rows: int = 0
    ring_bytes: int = 0
    idle_bytes: int = 0  # anonymous memory of a relay that has nothing to do
    most_bytes: int = 0
    log_bytes: int = 0
    kills: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def calm_bytes(self) -> int:
        """Anonymous memory of an idle relay, and the buffers that it reads any bulk load into."""
        return self.idle_bytes + READ_AHEAD_BYTES

    @property
    def above_bytes(self) -> int:
        """How much more the relay had."""
        return self.most_bytes - self.calm_bytes

    def figures(self, what: str, near: Target) -> list[Figure]:
        """Return the lines of the table."""
        return [
            Figure(f"{what}: into a log", self.seconds, "s"),
            Figure(f"{what}: into a log, rows", self.rows / max(self.seconds, 1e-9), "rows/s"),
            Figure(f"{what}: into a log, anonymous memory", self.most_bytes / 1e6, "MB"),
            Figure(f"{what}: of an idle relay and the read-ahead", self.calm_bytes / 1e6, "MB"),
            Figure(f"{what}: into a log, above that", self.above_bytes / 1e6, "MB", near),
            Figure(f"{what}: into a log, the ring", self.ring_bytes / 1e6, "MB"),
            Figure(f"{what}: into a log, on disk", self.log_bytes / 1e6, "MB"),
            Figure(f"{what}: into a log, kills", self.kills, "kills"),
        ]


def capture_into_log(
    server: PrivateMariaDB, folder: Path, stretch: Stretch, tell: Callable[[str], None]
) -> IntoLog:
    """Capture a stretch with one huge transaction; kill the relay in it, in all its stages."""
    ring_bytes = max(64 << 10, min(RING_BYTES, stretch.size_bytes // SMALL_SHARE))
    outcome = IntoLog(rows=stretch.rows, ring_bytes=ring_bytes)
    outcome.idle_bytes = _idle_bytes(server, folder / "idle", stretch, ring_bytes)
    relay = _relay(server, folder / "relay", stretch.begin, stretch.table.source, ring_bytes)
    rand, log, newest = random.Random(SEED), folder / "relay" / "log", stretch.end.to_scn()
    with running(relay.serve()):
        for share in (0.2, 0.5, 0.9):
            wanted = int((share + rand.uniform(-0.1, 0.1)) * stretch.size_bytes)
            _sample_until(outcome, relay, partial(_has_come, relay, wanted), newest)
            _kill(outcome, relay, f"with {wanted / 1e6:,.0f} MB of the transaction", tell)
        grown = _size_of(log) + 1
        _sample_until(outcome, relay, lambda: _size_of(log) >= grown, newest)
        _kill(outcome, relay, "while it is written into the log", tell)
        started = time.monotonic()
        _sample_until(outcome, relay, lambda: False, newest)
        outcome.seconds = time.monotonic() - started
        if relay.problem(PHYSICAL):
            outcome.problems.append(f"with a log: {relay.problem(PHYSICAL)}")
        wait_until(lambda: _status(relay)["durableScn"] >= newest, "the log", relay.tell)
    outcome.log_bytes = _size_of(log)
    if outcome.above_bytes > NEAR_BYTES:
        outcome.problems.append(
            f"anonymous memory was {outcome.above_bytes:,} bytes above an idle relay and read-ahead"
        )
    reader = LogReader(SegmentTuple(find_segments(log).log))
    if not all(key == n for n, key in enumerate(keys_held(reader), 1)) or (
        sum(1 for _ in keys_held(reader)) != stretch.rows
    ):
        outcome.problems.append("the log has not every row once, in order")
    reader.close()
    return outcome


def _relay(
    server: PrivateMariaDB, folder: Path, begin: BinlogPosition, source: str, ring_bytes: int
) -> RunningRelay:
    folder.mkdir(parents=True)
    password = folder / "password"
    password.touch(0o600)
    password.write_text(server.password)
    physical: dict[str, Any] = {
        "name": PHYSICAL,
        "uri": server.uri,
        "sources": [source],
        "password_file": str(password),
        "start": str(begin.to_scn()),
        "ring_bytes": ring_bytes,
        "log": {"dir": str(folder / "log")},
    }
    return RunningRelay(folder, physical)


def _idle_bytes(server: PrivateMariaDB, folder: Path, stretch: Stretch, ring_bytes: int) -> int:
    """Return the anonymous memory of a relay that has read the whole log."""
    relay = _relay(server, folder, stretch.end, stretch.table.source, ring_bytes)
    with running(relay.start()):
        return _anonymous_bytes(relay.child.pid)


def _sample_until(
    outcome: IntoLog, relay: RunningRelay, is_there: Callable[[], bool], newest: int
) -> None:
    """Sample the memory until something is so, or all was captured."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_there() and relay.max_scn(PHYSICAL) < newest:
        assert time.monotonic() < deadline, relay.tell()
        outcome.most_bytes = max(outcome.most_bytes, _anonymous_bytes(relay.child.pid))
        time.sleep(SAMPLE_S)


def _kill(outcome: IntoLog, relay: RunningRelay, when: str, tell: Callable[[str], None]) -> None:
    if relay.max_scn(PHYSICAL) < 0:
        outcome.problems.append("the ring has nothing")
    relay.child.kill()
    outcome.kills += 1
    tell(f"killed {when}")
    relay.serve()


def _status(relay: RunningRelay) -> dict[str, Any]:
    found: dict[str, Any] = relay.get("/controlSources/status").json()[PHYSICAL]["relayLog"]
    return found


def _has_come(relay: RunningRelay, size_bytes: int) -> bool:
    """Return whether so much of a transaction larger than the ring has come."""
    return int(_status(relay)["largeTransactionBytes"]) >= size_bytes


def _size_of(log: Path) -> int:
    return sum(path.stat().st_size for path in log.glob("*.segment"))


def _anonymous_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))
