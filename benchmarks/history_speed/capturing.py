"""Capture of one binlog with a log and without, and what is on disk then."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.capture.log import (
    NARROW,
    Stretch,
    begin_stretch,
    end_stretch,
    session_of,
    write_bulk,
)
from benchmarks.capture.readers import PHYSICAL, TimedSource, settings_of, wait_for_scn
from databus.conf.settings import RelayLogSettings, RelaySettings
from databus.demo.private_mariadb import PrivateMariaDB
from databus.relay.relay import Relay

RING_BYTES = 64 << 20
_WAIT_S = 60.0


class Captured(NamedTuple):
    """The seconds of a capture, and of CPU; the bytes of its events, and those of its log."""

    seconds: float
    cpu_s: float
    event_bytes: int
    log_bytes: int


def write_binlog(server: PrivateMariaDB, rows: int) -> Stretch:
    """Write transactions of a thousand rows."""
    with session_of(server) as cursor:
        begun = begin_stretch(cursor, NARROW)
        transactions = write_bulk(cursor, NARROW, rows)
        return end_stretch(cursor, NARROW, begun, rows, transactions)


def capture(server: PrivateMariaDB, stretch: Stretch, *, has_log: bool) -> Captured:
    """Capture a stretch into a new ring, up to the last window in it, and in the log."""
    folder = Path(tempfile.mkdtemp(prefix="databus-history-"))
    try:
        settings = settings_of(server, folder, stretch, RING_BYTES)
        return _run(_with_log(settings) if has_log else settings, stretch.end.to_scn())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _with_log(settings: RelaySettings) -> RelaySettings:
    (physical,) = settings.physical_sources
    with_log = physical.model_copy(update={"log": RelayLogSettings()})
    return settings.model_copy(update={"physical_sources": (with_log,)})


def _run(settings: RelaySettings, scn: int) -> Captured:
    relay = Relay(settings, TimedSource)
    try:
        source = relay.physical_sources[PHYSICAL]
        cpu_s = time.process_time()
        relay.start()
        ended = wait_for_scn(source, scn)
        log_bytes, recorder = 0, source.recorder
        if recorder is not None:
            give_up = time.perf_counter() + _WAIT_S
            while not recorder.segments or recorder.segments[-1].end.scn < scn:
                assert time.perf_counter() < give_up, "the log does not follow its ring"
                time.sleep(0.002)
            ended = time.perf_counter()
            log_bytes = sum(one.size_bytes for one in recorder.segments)
        cpu_s = time.process_time() - cpu_s
        event_bytes = source.capture.status.size_bytes
        return Captured(ended - TimedSource.opened_at, cpu_s, event_bytes, log_bytes)
    finally:
        relay.stop()
