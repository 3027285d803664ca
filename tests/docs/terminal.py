"""What a reader has: a folder, some terminals, and a MariaDB when a page asks for one.

A terminal is a bash that blocks are pasted into, so that variables, `cd`, `&`
and `$!` mean what they mean to the reader. The ports of the text, 11115, 11116,
11117 and 3306, become free ones; `databus` and `python` are those under test.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil

from databus.demo.private_mariadb import PrivateMariaDB
from databus.demo.processes import child_environment, free_port, wait_until
from tests import PATIENCE_S
from tests.docs.markdown import (
    Block,
)
from tests.mariadb_server import connect
from tools.repository import ROOT

RELAY_PORT, BOOTSTRAP_PORT, CLIENT_PORT, MARIADB_PORT = "11115", "11116", "11117", "3306"
# What is between a reader and a port of the relay's default: nothing that a page shows.
_DATABUS = """#!/bin/sh
case "$*" in
  *--relay*) ;;
  "quickstart "*) set -- "$@" --port {port} --bootstrap-port {bootstrap_port} ;;
  "relay run"*) set -- "$@" --port {port} ;;
  "tail "* | "top "*) set -- "$@" --relay http://127.0.0.1:{port} ;;
esac
exec {python} -m databus.cli.main "$@"
"""


class Terminal:
    """One bash; what is pasted and what comes out of it."""

    def __init__(self, name: str, folder: Path, environment: dict[str, str]) -> None:
        self._log = folder.with_name(f"{folder.name}-{name}.log")
        self._pasted = 0
        with self._log.open("wb") as log:
            self._bash = subprocess.Popen(
                ["bash", "--noprofile", "--norc"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=folder,
                env=environment,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def paste(self, text: str) -> None:
        """Paste, and come back at once."""
        assert self._bash.stdin is not None
        self._bash.stdin.write(text.encode())
        self._bash.stdin.flush()

    def run(self, text: str) -> str:
        """Paste, wait until all of it has ended well, and return what was printed."""
        self._pasted += 1
        begin, mark = len(self.output), f"<end of block {self._pasted}: "
        # One group, so that the status is that of all of it, and `&&`, functions and `cd` work.
        self.paste(f'{{ set -e\n{text}\nset +e; }}; echo "{mark}$?>"\n')
        wait_until(
            lambda: mark in self.output[begin:] or self._bash.poll() is not None, PATIENCE_S, text
        )
        printed, _, end = self.output[begin:].partition(mark)
        assert end.startswith("0>"), f"failed:\n{text}\n{printed}"
        return printed

    def wait_for(self, lines: Iterable[str]) -> None:
        """Wait until these lines have come out, in this order; `…` stands for anything."""
        wanted = [re.compile(f"^{_pattern(line)}", re.M | re.S) for line in lines]
        try:
            wait_until(lambda: _first_missing(wanted, self.output) is None, PATIENCE_S, "output")
        except TimeoutError:
            missing = _first_missing(wanted, self.output)
            raise AssertionError(f"{missing}\nnot found in:\n{self.output}") from None

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> None:
        """Press Ctrl-C (or send another signal), and wait for the end of what was running."""
        running = psutil.Process(self._bash.pid).children(recursive=True)
        for process in running:
            process.send_signal(number)
        psutil.wait_procs(running, PATIENCE_S)

    def close(self) -> None:
        """End everything that was started in it, at once: the folder goes with it."""
        assert self._bash.stdin is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.wait()
        # A broken pipe is no news here.
        with contextlib.suppress(BrokenPipeError):
            self._bash.stdin.close()


class Reader:
    """Somebody who does what a page says, in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "reader"
        self.folder.mkdir()
        self.port, self.bootstrap_port, self.client_port = free_port(), free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._terminals: dict[str, Terminal] = {}
        self._mariadb: PrivateMariaDB | None = None
        self._connection: Any = None
        self._environment = self._make_commands(folder / "bin")

    def follow(self, blocks: Iterable[Block]) -> None:
        """Do what the blocks of a page are marked with."""
        for block in blocks:
            if block.test:
                try:
                    self.do(block)
                except (AssertionError, TimeoutError) as error:
                    raise AssertionError(f"{block}: {error}") from error

    def do(self, block: Block) -> None:
        """Do what one block is marked with."""
        verb, _, rest = block.test.partition(" ")
        name = rest.removeprefix("in ") or "main"
        text = self.localized(block.text)
        match verb:
            case "run," if rest == "relay":
                self.terminal("main").run(text)
                self.wait_for_relay()
            case "run" if rest:
                self.terminal(name).paste(text)
            case "run":
                self.terminal(name).run(text)
            case "write":
                (self.folder / rest).write_text(text, encoding="utf-8")
            case "sql":
                self.run_sql(text)
            case "prints":
                self.terminal(name).wait_for(text.splitlines())
            case _:
                raise AssertionError(f"nobody knows what `test: {block.test}` means")

    def terminal(self, name: str) -> Terminal:
        """Return a terminal, opened when it is first asked for."""
        if name not in self._terminals:
            self._terminals[name] = Terminal(name, self.folder, self._environment)
        return self._terminals[name]

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[Terminal]:
        """Open a terminal for a `with`, at whose end all that was started in it ends."""
        terminal = self.terminal(name)
        try:
            yield terminal
        finally:
            self._terminals.pop(name).close()

    def start_relay(self, command: str = "databus relay run -c relay.toml\n") -> None:
        """Start a relay, and wait until it watches every source."""
        self.terminal("relay").paste(command)
        self.wait_for_relay()

    def wait_for_relay(self) -> None:
        """Wait until the relay watches every source."""
        try:
            wait_until(self._is_capturing, PATIENCE_S, "the relay")
        except TimeoutError:
            said = [terminal.output for terminal in self._terminals.values()]
            raise AssertionError("the relay does not capture:\n" + "\n".join(said)) from None

    def get(self, path: str, method: str = "GET") -> Any:
        """Return what the relay answers, from JSON."""
        request = urllib.request.Request(self.url + path, method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.loads(answer.read())

    def wait_for_events(self, count: int) -> None:
        """Wait until the relay has captured so many row changes."""
        path = "/containerStats/inbound/events/total"
        wait_until(lambda: self.get(path)["events"] >= count, PATIENCE_S, f"{count} events")

    def localized(self, text: str) -> str:
        """Return the text with this machine's ports."""
        text = text.replace(RELAY_PORT, str(self.port))
        text = text.replace(BOOTSTRAP_PORT, str(self.bootstrap_port))
        text = text.replace(CLIENT_PORT, str(self.client_port))
        if self._mariadb is not None:
            text = text.replace(MARIADB_PORT, str(self._mariadb.port))
        return text

    def run_sql(self, text: str) -> None:
        """Run statements as the administrator of a server that is started for this page."""
        if self._mariadb is None:
            self._mariadb = PrivateMariaDB()
            self._mariadb.start()
            # Kept: the page makes another account of this name, and it is found first.
            self._connection = connect(self._mariadb)
        with self._connection.cursor() as cursor:
            for statement in re.split(r";\s*\n", text):
                if statement.strip():
                    cursor.execute(statement)

    def close(self) -> None:
        """End everything that was started."""
        for terminal in self._terminals.values():
            terminal.close()
        if self._connection is not None:
            self._connection.close()
        if self._mariadb is not None:
            self._mariadb.close()

    def _is_capturing(self) -> bool:
        try:
            sources, schemas = self.get("/sources"), self.get("/register")
        except OSError:
            return False
        return {s["id"] for s in sources} == {s["id"] for s in schemas}

    def _make_commands(self, folder: Path) -> dict[str, str]:
        folder.mkdir()
        scripts = {
            "databus": _DATABUS.format(
                port=self.port, bootstrap_port=self.bootstrap_port, python=sys.executable
            ),
            "python": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
        }
        for name, script in scripts.items():
            path = folder / name
            path.write_text(script, encoding="utf-8")
            path.chmod(0o755)
        path_variable = os.pathsep.join([str(folder), os.environ["PATH"]])
        home = {"PATH": path_variable, "COLUMNS": "100", "DATABUS_CHECKOUT": str(ROOT)}
        return child_environment() | home


def _first_missing(wanted: Iterable[re.Pattern[str]], output: str) -> str | None:
    """Return the first line that does not come after those before it; None when all do."""
    # One after the other: one expression for all takes for ever to say that a line is missing.
    begin = 0
    for line in wanted:
        found = line.search(output, begin)
        if found is None:
            return line.pattern
        begin = found.end()
    return None


def _pattern(line: str) -> str:
    return ".*?".join(re.escape(part) for part in line.rstrip().split("…"))
