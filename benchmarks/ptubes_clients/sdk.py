"""Runs the stock client of Ptubes in processes of its own, and reads what it prints."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from kazoo.client import KazooClient

from tools import fetch_ptubes
from tools.fetch_test_servers import FetchError

PROGRAM = Path(__file__).parent / "programs" / "Consume.java"
PARTITIONS = 11
TASK, READER = "billing", "reader"
_END_S = 30.0
_DEFAULTS = {
    "task": TASK,
    "reader": READER,
    "ddl": "true",
    "commits": "false",
    "mode": "LATEST",
    "version": "1",
    "partitions": str(PARTITIONS),
    "failures": "0",
    "skipped": "-",
    "ack": "false",
    "sleepMs": "0",
    "heapMib": "256",
}


class Cell(NamedTuple):
    """A column's value as the client has it."""

    value: str | None
    sql_type: int
    props: Mapping[str, str]


class Handed(NamedTuple):
    """One event that the client was handed; `place` is (server, file, offset, index, ms)."""

    kind: str
    is_ddl: bool
    table: str
    before: Mapping[str, Cell]
    after: Mapping[str, Cell]
    sql: str
    place: tuple[int, ...]

    @property
    def note(self) -> str:
        """The note of the row after the change."""
        return self.after["note"].value or "" if "note" in self.after else ""


class Call(NamedTuple):
    """One call of the listener: what it answered, the batch's id, its notes."""

    status: str
    batch: str | None
    notes: tuple[str, ...]


def compiled(folder: Path) -> list[Path]:
    """Compile the program; return its class path. Raises FetchError without the client."""
    archives = fetch_ptubes.find()
    if archives is None:
        raise FetchError("Ptubes' client is not there: python -m tools.fetch_ptubes fetches it")
    path = os.pathsep.join(map(str, archives))
    command = ["javac", "-nowarn", "-cp", path, "-d", str(folder), str(PROGRAM)]
    subprocess.run(command, check=True, timeout=120)
    return [folder, *archives]


class StockSdk:
    """One process of the client; a context manager."""

    def __init__(
        self, class_path: list[Path], zookeeper: str, readers: str, folder: Path, tables: str
    ) -> None:
        """`zookeeper` is HOST:PORT, `readers` several of them."""
        self._given = _DEFAULTS | {
            "zookeeper": zookeeper,
            "readers": readers,
            "tables": tables,
            "logs": str(folder),
        }
        self._class_path, self._folder = class_path, folder
        self.events: list[Any] = []
        self.calls: list[Call] = []
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._read)

    def using(self, **given: object) -> StockSdk:
        """Change arguments of the program, before it is started."""
        self._given |= {name: str(value) for name, value in given.items()}
        return self

    def start(self) -> StockSdk:
        """Start the process."""
        self._folder.mkdir(exist_ok=True)
        heap = f"-Xmx{self._given['heapMib']}m"
        command = ["java", heap, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += ["-cp", os.pathsep.join(map(str, self._class_path)), "Consume"]
        command += [f"{name}={value}" for name, value in self._given.items()]
        with (self._folder / "errors").open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=self._folder,
            )
        self._thread.start()
        return self

    def __enter__(self) -> StockSdk:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def tell(self, line: str) -> None:
        """Change its subscription: `partitions N` or `reset`."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """Kill it, as a power cut would, and take what it had printed. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait(_END_S)
        self._thread.join(_END_S)
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.close()
        process.stdin.close()

    @property
    def notes(self) -> list[str]:
        """The notes of all rows that it was handed and took."""
        events = [one for one in list(self.events) if isinstance(one, Handed)]
        return [one.note for one in events if one.kind in ("INSERT", "UPDATE")]

    def take(self, event: Handed) -> None:
        """Remember an event that it took."""
        self.events.append(event)

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("[") and line.endswith("]\n"):  # not the half line of a killed one
                self._take_call(*json.loads(line))

    def _take_call(self, status: str, batch: str | None, shown: list[Any]) -> None:
        events = [_event(*one) for one in shown]
        if status != "SUCCESS" or batch is not None:
            self.calls.append(Call(status, batch, tuple(one.note for one in events)))
        if status == "SUCCESS":
            for one in events:
                self.take(one)


def _event(kind: str, is_ddl: bool, table: str, *rest: Any) -> Handed:
    before, after, sql, place = rest
    cells = [{name: Cell(*one) for name, one in row.items()} for row in (before, after)]
    return Handed(kind, is_ddl, table, cells[0], cells[1], sql, tuple(place))


def checkpoints(zookeeper: str, task: str = TASK, most: int = PARTITIONS) -> dict[int, Any]:
    """Return the checkpoints that the client has stored, by partition."""
    client = KazooClient(zookeeper)
    client.start()
    try:
        found = {}
        for partition in range(most):
            path = f"/{task}/PROPERTYSTORE/{partition}_{task}"
            if client.exists(path):
                fields = json.loads(client.get(path)[0])["simpleFields"]
                found[partition] = json.loads(fields["checkpoint"])
        return found
    finally:
        client.stop()
        client.close()
