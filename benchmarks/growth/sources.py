"""How a relay's CPU grows with its physical sources, each with a connection to its database.

The relay is the command, in a process of its own; the databases are those of one server.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen

from pymysql.cursors import Cursor

from benchmarks.capture.log import SERVER_OPTIONS, session_of
from benchmarks.growth.curve import Curve, least
from benchmarks.growth.processes import cpu_seconds
from databus.demo.private_mariadb import PrivateMariaDB
from databus.demo.processes import Child, free_port, python_module, wait_until

_PROBE_S = 4.0  # a silent stream is probed so often
IDLE_S = 3 * _PROBE_S
_SETTLE_S = 2.0
# Sources that share a log all read all rows that were written: CPU falls until they have.
_SAME = 0.9
_QUIET_TIMEOUT_S = 240.0
_START_TIMEOUT_S = 120.0
_ASK_S = 0.25  # every answer is work of the relay


def sources(short: bool) -> list[Curve]:
    """Measure a relay's start, and its idling, by the number of physical sources."""
    sizes = (1, 10, 30) if short else (1, 10, 30, 100, 300)
    options = {**SERVER_OPTIONS, "max-connections": 4 * max(sizes) + 100}
    with PrivateMariaDB(options=options) as server:
        with session_of(server) as cursor:
            _make_databases(cursor, max(sizes))
        start, idle = least(sizes, 1 if short else 2, lambda size: _relay_of(server, size, short))
    return [
        Curve("sources: start of the relay", "sources", start),
        Curve("sources: a second of idling", "sources", idle),
    ]


def _make_databases(cursor: Cursor, count: int) -> None:
    for number in range(count):
        cursor.execute(f"CREATE DATABASE d{number}")
        cursor.execute(f"CREATE TABLE d{number}.rows (id INT PRIMARY KEY, text VARCHAR(100))")


def _relay_of(server: PrivateMariaDB, count: int, short: bool) -> list[float]:
    """Return the CPU seconds of a start, and of a second of idling."""
    with tempfile.TemporaryDirectory(prefix="databus-growth-") as folder:
        port = free_port()
        file = _settings_file(Path(folder), server, count, port)
        command = python_module("databus.cli.main", "relay", "run", "-c", file)
        relay = Child("relay", command, Path(folder))
        relay.start()
        try:
            with session_of(server) as cursor:
                wait_until(lambda: _is_ready(relay, port), _START_TIMEOUT_S, "the relay", _ASK_S)
                # A row of each, so that the rings are not empty and the log is compared with them.
                for number in range(count):
                    cursor.execute(f"REPLACE INTO d{number}.rows VALUES (1, UUID())")
            time.sleep(_SETTLE_S)
            start = cpu_seconds(relay.pid)
            wait_until(lambda: _is_quiet(relay.pid), _QUIET_TIMEOUT_S, "an idle relay")
            begun = cpu_seconds(relay.pid)
            length_s = IDLE_S / 3 if short else IDLE_S
            time.sleep(length_s)
            return [start, (cpu_seconds(relay.pid) - begun) / length_s]
        finally:
            relay.stop()


def _is_quiet(pid: int) -> bool:
    """Return whether the relay needs no less CPU in a while than in the while before."""
    used = []
    for _ in range(2):
        begun = cpu_seconds(pid)
        time.sleep(_PROBE_S)  # half of that would be compared with its other half
        used.append(cpu_seconds(pid) - begun)
    return used[1] >= _SAME * used[0]


def _is_ready(relay: Child, port: int) -> bool:
    relay.check()
    try:
        with urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def _settings_file(folder: Path, server: PrivateMariaDB, count: int, port: int) -> Path:
    """Write the settings of a relay of so many databases."""
    password_file = folder / "password"
    password_file.touch(0o600)
    password_file.write_text(server.password)
    lines = [f"data_dir = {json.dumps(str(folder / 'data'))}", "[http]", f"port = {port}"]
    for number in range(count):
        lines += [
            "[[physical_sources]]",
            f'name = "d{number}"',
            f"uri = {json.dumps(server.uri)}",
            f"password_file = {json.dumps(str(password_file))}",
            f'sources = ["d{number}.rows"]',
            'start = "latest"',
            'ring_bytes = "1MiB"',
        ]
    file = folder / "relay.toml"
    file.write_text("\n".join(lines) + "\n")
    return file
