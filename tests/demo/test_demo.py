"""`databus demo` as a person runs it: a process, a terminal, Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from databus.client.cli.client import DEFAULT_RELAY
from databus.conf.settings import HttpSettings, PairSettings
from databus.demo.cli import exit_code
from databus.demo.processes import child_environment, free_port, python_module, wait_until
from databus.demo.show import BOOTSTRAP_PORT, RELAY_PORT
from tests import PATIENCE_S
from tests.demo.terminals import in_a_terminal

LAST_LINE = r"delivered {n} of {n} changes, in order, p50 \d+\.\d ms, p99 \d+\.\d ms"


class Demo:
    """A demo process whose temporary files all go to one folder of the test's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "tmp"
        self.folder.mkdir()
        self.output = folder / "output"
        self.process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    def start(self, *arguments: object, stdout: int | None = None) -> None:
        """Start it on a free port."""
        self.start_as_typed("--port", self.port, *arguments, stdout=stdout)

    def start_as_typed(self, *arguments: object, stdout: int | None = None) -> None:
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                python_module("databus.cli.main", "demo", *arguments),
                stdin=subprocess.DEVNULL,
                stdout=output if stdout is None else stdout,
                stderr=output if stdout is None else stdout,
                env=child_environment() | {"TMPDIR": str(self.folder), "COLUMNS": "120"},
            )

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(PATIENCE_S)

    def signal(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.wait()

    def text(self) -> str:
        return self.output.read_text(encoding="utf-8")

    def wait_for(self, text: str) -> None:
        assert self.process is not None
        process = self.process
        wait_until(lambda: text in self.text() or process.poll() is not None, PATIENCE_S, text)
        assert text in self.text()

    def pids(self) -> list[int]:
        """The processes of this demo, by their command lines."""
        found = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if str(self.folder).encode() in entry.read_bytes():
                    found.append(int(entry.parent.name))
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended while we looked
        return found

    def assert_nothing_is_left(self) -> None:
        assert self.pids() == []
        assert list(self.folder.iterdir()) == []


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    made = Demo(tmp_path)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.signal(signal.SIGTERM)


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


def test_fifty_changes_arrive_in_order_and_nothing_is_left(demo: Demo) -> None:
    demo.start("--changes", 50)
    assert demo.wait() == 0, demo.text()
    assert re.fullmatch(LAST_LINE.format(n=50), last_line(demo.text()))
    demo.assert_nothing_is_left()


def test_it_says_what_to_look_at_and_what_to_type(demo: Demo) -> None:
    demo.start("--changes", 20)
    assert demo.wait() == 0, demo.text()
    hints = ("/sources", "/health", "/metrics", "output=json_plain_value", "databus tail")
    for hint in (*hints, f"databus top --relay http://127.0.0.1:{demo.port}"):
        assert hint in demo.text()


def test_rows_are_printed_as_they_come(demo: Demo) -> None:
    demo.start("--changes", 50)
    assert demo.wait() == 0, demo.text()
    assert "insert shop.products 1: name=Espresso cup  price=7.90" in demo.text()


def test_what_it_says_to_type_shows_rows(demo: Demo) -> None:
    demo.start("--rate", 20)
    demo.wait_for("insert shop.customers")
    commands = re.findall(r"curl -s '(http://[^']+)'", demo.text())
    bodies = [urllib.request.urlopen(command, timeout=PATIENCE_S).read() for command in commands]
    assert len(bodies) == 2
    assert all(b'"change_no":' in body for body in bodies)


def test_the_page_whose_address_it_says_is_there_while_it_runs(demo: Demo) -> None:
    demo.start("--rate", 20)
    demo.wait_for("insert shop.customers")
    (address,) = re.findall(r"Its page, for a browser:  (http://\S+/)\n", demo.text())
    with urllib.request.urlopen(address, timeout=PATIENCE_S) as page:
        assert page.headers.get_content_type() == "text/html"
        assert b"<title>databus relay</title>" in page.read()


def test_its_ports_are_those_that_commands_and_docs_look_at() -> None:
    assert RELAY_PORT == HttpSettings().port == urlsplit(DEFAULT_RELAY).port
    assert PairSettings().port == BOOTSTRAP_PORT


@contextmanager
def taken(port: int) -> Iterator[None]:
    """Have somebody listen on a port: this test, or whoever does already."""
    with suppress(OSError), socket.create_server(("127.0.0.1", port)):
        yield
        return
    yield


def test_where_the_docs_port_is_in_use_what_it_says_to_type_has_another(demo: Demo) -> None:
    with taken(RELAY_PORT):
        demo.start_as_typed("--rate", 20)
        demo.wait_for("insert shop.orders")
    (line,) = re.findall(r"databus (tail .+)$", demo.text(), re.M)
    assert "--relay http://127.0.0.1:" in line
    command = python_module("databus.cli.main", *line.split(), "--count", 1)
    shown = subprocess.run(
        command, env=child_environment(), capture_output=True, timeout=PATIENCE_S
    )
    assert b" shop.orders  id=1 " in shown.stdout


@pytest.mark.parametrize("rate", [450, 1500], ids=["seeded first", "shop done first"])
def test_a_late_consumer_catches_up_by_bootstrap_and_holds_the_shops_rows(
    demo: Demo, rate: int
) -> None:
    demo.start("--changes", 900, "--rate", rate)
    assert demo.wait() == 0, demo.text()
    *_, late, last = demo.text().strip().splitlines()
    assert re.fullmatch(LAST_LINE.format(n=900), last)
    found = re.fullmatch(
        r"late consumer is live: (\d+) rows and changes from the bootstrap server, (\d+) changes "
        r"from the relay; (\d+) rows, which are exactly the shop's \3 rows",
        late,
    )
    assert found, late
    assert int(found[1]) > 0
    assert "databus spark sync shop.orders delta:lake/orders --relay http://" in demo.text()
    demo.assert_nothing_is_left()


@pytest.mark.mariadb
def test_the_same_on_a_private_mariadb(demo: Demo) -> None:
    demo.start("--mysql", "--changes", 50)
    assert demo.wait() == 0, demo.text()
    assert re.fullmatch(LAST_LINE.format(n=50), last_line(demo.text()))
    demo.assert_nothing_is_left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing(demo: Demo, number: signal.Signals) -> None:
    demo.start("--rate", 50)
    demo.wait_for("insert shop.customers")
    assert demo.signal(number) == 0, demo.text()
    assert re.match(r"delivered \d+ changes, in order", last_line(demo.text()))
    demo.assert_nothing_is_left()


@pytest.mark.parametrize("step", ["making a shop", "starting the relay", "starting the consumer"])
def test_a_signal_during_the_start_leaves_nothing(demo: Demo, step: str) -> None:
    demo.start()
    demo.wait_for(step)
    assert demo.signal(signal.SIGINT) == 0, demo.text()
    demo.assert_nothing_is_left()


@pytest.mark.parametrize("name", ["relay run", "databus.demo.writer"])
def test_a_child_that_dies_ends_the_demo_with_its_name(demo: Demo, name: str) -> None:
    demo.start()
    demo.wait_for("insert shop.customers")
    os.kill(find_child(demo, name), signal.SIGKILL)
    assert demo.wait() == 1
    assert f"{'relay' if 'relay' in name else 'writer'} ended with -9" in demo.text()
    demo.assert_nothing_is_left()


def find_child(demo: Demo, name: str) -> int:
    def command(pid: int) -> str:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()

    (pid,) = [pid for pid in demo.pids() if name in command(pid)]
    return pid


def test_on_a_terminal_it_is_a_live_table(demo: Demo) -> None:
    text = in_a_terminal(lambda terminal: demo.start("--changes", 40, stdout=terminal))
    assert demo.wait() == 0, text
    for seen in ("shop.products", "latency", "40 of 40 changes", "starting the relay"):
        assert seen in text
    assert re.search(LAST_LINE.format(n=40), text)
    demo.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("is_right", "changes", "is_interrupted", "code"),
    [
        (True, 50, False, 0),
        (False, 50, False, 1),
        (False, 50, True, 130),
        (True, None, True, 0),
        (False, None, True, 1),
    ],
)
def test_the_exit_code_says_whether_all_came(
    is_right: bool, changes: int | None, is_interrupted: bool, code: int
) -> None:
    assert exit_code(is_right, changes, is_interrupted) == code
