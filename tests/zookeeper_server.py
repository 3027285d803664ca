"""Private ZooKeeper servers, alone or as an ensemble: on loopback, gone when they are closed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from databus.demo.processes import free_port
from tests import PATIENCE_S

HOST = "127.0.0.1"
JARS = Path("/usr/share/java")
INSTALL_HINT = "apt install libzookeeper-java openjdk-17-jre-headless"
_NEEDED = ("zookeeper.jar", "zookeeper-jute.jar", "slf4j-api.jar", "slf4j-nop.jar")
_ALSO = ("netty-*.jar", "metrics-core.jar", "commons-io.jar", "commons-cli.jar", "snappy-java.jar")
_SETTINGS = """\
tickTime=500
dataDir={folder}/data
clientPort={port}
clientPortAddress=127.0.0.1
admin.enableServer=false
4lw.commands.whitelist=srvr
maxClientCnxns=0
initLimit=20
syncLimit=10
"""


class PrivateZookeeper:
    """One server process and its files; a context manager. Its data outlive a kill.

    `number` and `members` are those of a node of an ensemble.
    """

    def __init__(self, number: int = 0, members: Sequence[str] = ()) -> None:
        self.port = 0
        self._number, self._members = number, members
        self._folder = Path(tempfile.mkdtemp(prefix="databus-zookeeper-"))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PrivateZookeeper:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def url(self, path: str = "") -> str:
        """Return the URL of a store below a path."""
        return f"zookeeper://{HOST}:{self.port}{path}"

    def start(self) -> None:
        """Start the server, on its former port, and wait until it serves clients."""
        # Another process may take the port between choosing and using it.
        for _ in range(5):
            self.launch()
            if self._serves():
                return
            self.port = 0
        self._fail()

    def launch(self) -> None:
        """Start the server."""
        self.port = self.port or free_port()
        self._launch()

    def wait(self) -> None:
        """Wait until the server serves clients."""
        if not self._serves():
            self._fail()

    def _fail(self) -> NoReturn:
        log = (self._folder / "log").read_text(errors="replace")
        raise AssertionError(f"ZooKeeper does not start ({INSTALL_HINT}): {log[-2000:]}")

    def kill(self) -> None:
        """Kill the server, as a power cut would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(PATIENCE_S)
            self._process = None

    def lose_data(self) -> None:
        """Kill the server and remove what it has stored."""
        self.kill()
        shutil.rmtree(self._folder / "data")

    def freeze(self) -> None:
        """Stop the server with SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def close(self) -> None:
        """End the server and remove its files."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _launch(self) -> None:
        settings = self._folder / "zoo.cfg"
        text = _SETTINGS.format(folder=self._folder, port=self.port)
        settings.write_text(text + "".join(f"{member}\n" for member in self._members))
        (self._folder / "data").mkdir(exist_ok=True)
        (self._folder / "data" / "myid").write_text(str(self._number))
        jars = [JARS / name for name in _NEEDED]
        jars += [jar for pattern in _ALSO for jar in sorted(JARS.glob(pattern))]
        command = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        # Its data lie in a folder of a test: nobody needs them after a power cut.
        command += ["-Dzookeeper.forceSync=no", "-cp", os.pathsep.join(map(str, jars))]
        command += ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(settings)]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def _serves(self) -> bool:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            assert self._process is not None
            if self._process.poll() is not None:
                return False
            if _is_ready(self.port):
                return True
            time.sleep(0.05)
        return False


class ZookeeperEnsemble:
    """Several servers that replicate each other; a context manager."""

    def __init__(self, nodes: int = 3) -> None:
        numbers = range(1, nodes + 1)
        members = [f"server.{n}={HOST}:{free_port()}:{free_port()}" for n in numbers]
        self.nodes = [PrivateZookeeper(n, members) for n in numbers]

    def __enter__(self) -> ZookeeperEnsemble:
        try:
            for node in self.nodes:
                node.launch()
            for node in self.nodes:
                node.wait()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The URL of a store."""
        return f"zookeeper://{','.join(f'{HOST}:{node.port}' for node in self.nodes)}"

    def close(self) -> None:
        """End the servers and remove their files."""
        for node in self.nodes:
            node.close()


def _is_ready(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1) as connection:
            connection.sendall(b"srvr")
            with connection.makefile("rb") as answer:
                return b"Mode:" in answer.read()  # a node alone of three says that it serves nobody
    except OSError:
        return False
