"""The leak check sees every kind of leak, and nothing else."""

from __future__ import annotations

import mmap
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.leaks import take_stock, what_is_left


def open_file(stack: ExitStack, folder: Path) -> None:
    """Hold a file open."""
    stack.enter_context((folder / "data").open("w"))


def map_file(stack: ExitStack, folder: Path) -> None:
    """Hold a mapping, of a file that is closed again."""
    path = folder / "data"
    path.write_bytes(bytes(4096))
    with path.open("r+b") as file:
        stack.enter_context(mmap.mmap(file.fileno(), 4096))


def run_child(stack: ExitStack, folder: Path) -> None:
    """Hold a child process, waiting for its input."""
    child: AbstractContextManager[subprocess.Popen[bytes]] = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    stack.enter_context(child)


def run_thread(stack: ExitStack, folder: Path) -> None:
    """Hold a daemon thread."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="left-behind", daemon=True)
    thread.start()
    stack.callback(thread.join)
    stack.callback(end.set)


@pytest.mark.parametrize(
    ("hold", "words"),
    [
        (open_file, "descriptor"),
        (map_file, "mapping"),
        (run_child, "child process"),
        (run_thread, "left-behind"),
    ],
)
def test_what_is_held_is_named_until_it_is_let_go(
    hold: Callable[[ExitStack, Path], None], words: str, tmp_path: Path
) -> None:
    before = take_stock()
    with ExitStack() as stack:
        hold(stack, tmp_path)
        assert any(words in left for left in what_is_left(before, 0))
    assert what_is_left(before, 2) == []


def test_a_file_opened_and_closed_is_no_leak(tmp_path: Path) -> None:
    before = take_stock()
    (tmp_path / "data").write_text("x")
    assert what_is_left(before, 0) == []


@pytest.fixture
def jvm(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Listen where Spark's JVM would."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        gateway = SimpleNamespace(
            gateway_parameters=SimpleNamespace(port=server.getsockname()[1]),
            get_callback_server=lambda: None,
        )
        context = SimpleNamespace(_gateway=gateway)
        monkeypatch.setitem(sys.modules, "pyspark", SimpleNamespace(SparkContext=context))
        yield server


def test_a_connection_to_sparks_jvm_is_nobodys(jvm: socket.socket) -> None:
    before = take_stock()
    with socket.create_connection(jvm.getsockname()):
        assert what_is_left(before, 0) == []


def test_a_connection_that_the_jvm_resets_was_there_before(jvm: socket.socket) -> None:
    with socket.create_connection(jvm.getsockname()) as driver:
        before = take_stock()
        connection, _ = jvm.accept()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
        with pytest.raises(ConnectionResetError):
            driver.recv(1)
        assert what_is_left(before, 0) == []
