"""Our own readers, as one program under the rule of the peers.

    python -m benchmarks.peers.ours MODE HOST PORT USER PASSWORD FILE OFFSET TABLE ROWS

raw      the server's bytes, received and forgotten: the limit of all
library  mysql-replication, the Python library that decodes rows
ring     a relay captures into its ring of the default size, nobody reads
key      a relay, and a client in this process whose callback looks at keys
row      the same, and the callback takes each row as a dict
window   the same in a loop over windows, whose rows are taken as dicts
batch    the same in a loop over batches of whole transactions

A relay is a process of its own. Its clock begins when it has captured its first rows, before the
client is made, so that the client cannot read faster than the relay; CPU seconds are those of
both processes from there on.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import WriteRowsEvent

from databus.client.client import DatabusClient
from databus.client.consumer import DataEvent
from databus.conf.settings import PhysicalSourceSettings, RelaySettings
from databus.demo.processes import Child, free_port, python_module, wait_until
from databus.relay.relay import Relay
from databus.relay.sources.mysql.replication.dump import BinlogDump
from databus.relay.sources.mysql.server.connection import address_of
from databus.relay.sources.mysql.server.start_position import Start, file_number
from databus.schemas.scn import BinlogPosition

PHYSICAL = "bench"
_TIMEOUT_S = 600.0
_POLL_S = 0.002
_BATCH_ROWS = 10_000
_BUFFER_BYTES = 4 << 20
_DEFAULT_RING_BYTES: int = PhysicalSourceSettings.model_fields["ring_bytes"].default
_BYTES_PER_ROW = 400  # of the narrow table in a ring, with room
# The packet that ends a dump: length 5, sequence number, FE, warnings, status.
_END_BYTES = 9
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
_STATUS = f"/api/v1/physicalSources/{PHYSICAL}"


@dataclass(frozen=True, slots=True)
class Job:
    """The arguments."""

    mode: str
    host: str
    port: int
    user: str
    password: str
    file: str
    offset: int
    table: str
    rows: int

    @classmethod
    def of(cls, arguments: list[str]) -> Job:
        """Return the job of the command line's arguments."""
        mode, host, port, user, password, file, offset, table, rows = arguments
        return cls(mode, host, int(port), user, password, file, int(offset), table, int(rows))

    @property
    def scn(self) -> int:
        """The SCN at which the stretch begins."""
        return BinlogPosition(0, file_number(self.file), self.offset).to_scn()


class Clock:
    """Counts rows, and takes the times from the first to the last."""

    def __init__(self, wanted: int, cpu_s: Callable[[], float] | None = None) -> None:
        self.is_over = False
        self.rows = self._first = 0
        self.wanted = wanted
        self._cpu_s = cpu_s or own_cpu_s
        self._started = self._cpu_began_s = self.seconds = self.cpu_s = 0.0

    def begin(self, rows: int) -> None:
        """Start the times, when so many rows have been read; does nothing the second time."""
        if not self._started:
            self._first, self._started, self._cpu_began_s = rows, time.monotonic(), self._cpu_s()

    def count(self, rows: int) -> None:
        """Count rows that have just been read."""
        self.rows += rows
        self.begin(self.rows)
        if self.rows >= self.wanted and not self.is_over:
            self.seconds = time.monotonic() - self._started
            self.cpu_s = self._cpu_s() - self._cpu_began_s
            self.is_over = True

    def report(self) -> dict[str, float]:
        """Return what the program prints."""
        return {
            "rows": self.rows - self._first,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_s,
        }


def own_cpu_s() -> float:
    """Return the CPU seconds of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def cpu_s_of(pid: int) -> float:
    """Return the CPU seconds of another process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS


def ring_bytes_of(job: Job) -> int:
    """Return the size of the ring: the default if nobody reads it, or else room for all rows."""
    if job.mode == "ring":
        # Larger, the first lap would be measured, in which the system finds memory for each page.
        return _DEFAULT_RING_BYTES
    # The relay is several times as fast as a client, which would fall off a smaller ring.
    return max(_DEFAULT_RING_BYTES, job.rows * _BYTES_PER_ROW)


def settings_of(job: Job, folder: Path, start: str) -> PhysicalSourceSettings:
    """Return the settings of a physical source; the password goes to a file in the folder."""
    password_file = folder / "password"
    password_file.touch(0o600)
    password_file.write_text(job.password, encoding="utf-8")
    return PhysicalSourceSettings(
        name=PHYSICAL,
        uri=f"mysql://{job.user}@{job.host}:{job.port}",
        sources=(job.table,),
        password_file=password_file,
        start=start,
        ring_bytes=ring_bytes_of(job),
    )


def read_raw(job: Job, folder: Path) -> dict[str, float]:
    """Receive and forget all bytes to the end of the log."""
    address = address_of(settings_of(job, folder, "latest"))
    start = Start(job.file, job.offset)
    dump = BinlogDump(address, start, 4370, source=PHYSICAL, follows=False)
    clock = Clock(job.rows + 1)
    with closing(dump):
        socket = dump._connection._sock
        socket.settimeout(_TIMEOUT_S)
        buffer = memoryview(bytearray(_BUFFER_BYTES))
        tail = b""
        clock.count(1)
        while not _is_end(tail):
            count = socket.recv_into(buffer)
            tail = (tail + bytes(buffer[max(0, count - _END_BYTES) : count]))[-_END_BYTES:]
        clock.count(job.rows)
    return clock.report()


def _is_end(tail: bytes) -> bool:
    return tail[:3] == b"\x05\0\0" and tail[4:7] == b"\xfe\0\0"


def read_with_library(job: Job, folder: Path) -> dict[str, float]:  # noqa: ARG001
    """Decode rows with mysql-replication."""
    clock = Clock(job.rows)
    reader = BinLogStreamReader(
        {"host": job.host, "port": job.port, "user": job.user, "password": job.password},
        server_id=4380,
        log_file=job.file,
        log_pos=job.offset,
        resume_stream=True,
        only_events=[WriteRowsEvent],
        enable_logging=False,
    )
    with closing(reader):
        for event in reader:
            clock.count(len(event.rows))
            if clock.is_over:
                break
    return clock.report()


def capture(job: Job, folder: Path) -> dict[str, float]:
    """Capture into a ring that nobody reads."""
    physical = settings_of(job, folder, str(job.scn))
    relay = Relay(RelaySettings(data_dir=folder / "data", physical_sources=(physical,)))
    clock = Clock(job.rows)
    status = relay.physical_sources[PHYSICAL].capture
    try:
        relay.start()
        while not clock.is_over:
            time.sleep(_POLL_S)
            if new := status.status.events - clock.rows:
                clock.count(new)
    finally:
        relay.stop()
    return clock.report()


class PrivateRelay:
    """A relay process with settings and files of its own; a context manager."""

    def __init__(self, job: Job, folder: Path, more: str = "") -> None:
        """`more` are further tables of its settings."""
        physical = settings_of(job, folder, str(job.scn))
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        settings = folder / "relay.toml"
        settings.write_text(
            f"""data_dir = "relay"
[http]
port = {port}
[[physical_sources]]
name = "{PHYSICAL}"
uri = "{physical.uri}"
password_file = "password"
sources = ["{job.table}"]
start = "{physical.start}"
ring_bytes = {physical.ring_bytes}
{more}""",
            encoding="utf-8",
        )
        command = python_module("databus.cli.main", "relay", "run", "-c", settings)
        self._child = Child("relay", command, folder)

    def __enter__(self) -> PrivateRelay:
        self._child.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._child.stop()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._child.pid

    @property
    def cpu_s(self) -> float:
        """CPU seconds since its start."""
        return cpu_s_of(self._child.pid)

    def wait_for_rows(self) -> int:
        """Return how many rows it has captured when the first are seen; raises ChildError."""
        wait_until(self.captured, _TIMEOUT_S, "the relay's first rows", _POLL_S)
        return self.captured()

    def captured(self) -> int:
        """Return how many rows it has captured; raises ChildError."""
        self._child.check()
        with suppress(OSError), urllib.request.urlopen(f"{self.url}{_STATUS}") as answer:
            return int(json.load(answer)["events"])
        return 0


def consume(job: Job, folder: Path) -> dict[str, float]:
    """Read through a relay and a client."""
    with PrivateRelay(job, folder) as relay:
        clock = Clock(job.rows, lambda: own_cpu_s() + relay.cpu_s)
        clock.begin(relay.wait_for_rows())
        client = DatabusClient([relay.url], start="earliest", checkpoint_dir=folder / "checkpoints")
        if job.mode == "window":
            _consume_windows(client, job.table, clock)
        elif job.mode == "batch":
            _consume_batches(client, job.table, clock)
        else:
            look = _look_at_rows if job.mode == "row" else _look_at_keys
            client.on(job.table)(look(client, clock))
            client.run()
        return clock.report()


def _look_at_rows(client: DatabusClient, clock: Clock) -> Callable[[DataEvent], None]:
    rows = 0

    def look(event: DataEvent) -> None:
        nonlocal rows
        if event.row is not None:
            rows += 1
            if rows == clock.wanted:
                clock.count(rows)
                client.stop()

    return look


def _look_at_keys(client: DatabusClient, clock: Clock) -> Callable[[DataEvent], None]:
    rows = 0

    def look(event: DataEvent) -> None:
        nonlocal rows
        if event.wire_key:
            rows += 1
            if rows == clock.wanted:
                clock.count(rows)
                client.stop()

    return look


def _consume_windows(client: DatabusClient, table: str, clock: Clock) -> None:
    for window in client.windows(table):
        clock.count(len(window.to_pylist()))
        if clock.is_over:
            break
    client.stop()


def _consume_batches(client: DatabusClient, table: str, clock: Clock) -> None:
    for batch in client.batches(table, rows=_BATCH_ROWS):
        clock.count(len(batch.to_pylist()))
        if clock.is_over:
            break
    client.stop()


READERS: dict[str, Callable[[Job, Path], dict[str, float]]] = {
    "raw": read_raw,
    "library": read_with_library,
    "ring": capture,
    "key": consume,
    "row": consume,
    "window": consume,
    "batch": consume,
}


def main(arguments: list[str]) -> None:
    """Read, and print the figures."""
    job = Job.of(arguments)
    with tempfile.TemporaryDirectory(prefix="databus-peers-") as folder:
        print(json.dumps(READERS[job.mode](job, Path(folder))))


if __name__ == "__main__":
    main(sys.argv[1:])
