"""Starts the processes of `asyncio_process`, and reads what they wrote."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


class Processes:
    """Processes that read in asyncio, each with a file of what it was given."""

    def __init__(self, relay: str, coordinator: str, folder: Path) -> None:
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._arguments, self._folder = (relay, coordinator, str(folder)), folder

    def start(self, name: str) -> None:
        module = "tests.client.asyncio_process"
        command = [sys.executable, "-m", module, *self._arguments, name]
        self.running[name] = subprocess.Popen(command)

    def lines(self, name: str) -> list[Any]:
        path = self._folder / f"{name}.log"
        if not path.exists():
            return []
        whole = path.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def rows(self) -> list[dict[str, int]]:
        return [line[1] for name in self.running for line in self.lines(name) if line[0] == "row"]

    def owned(self, name: str) -> set[int]:
        owned: set[int] = set()
        for kind, partition in self.lines(name):
            if kind != "row":
                (owned.add if kind == "add" else owned.discard)(partition)
        return owned

    def close(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()
