"""Servers of Spark as processes of their own, from the pyspark package: a cluster, and Connect.

    with StandaloneCluster(folder, workers=2) as cluster:
        run([..., "--master", cluster.url])

All listen on the loopback alone, and each has a working directory of its own in the folder. The
folder keeps their logs, and those of executors in `worker-N/app-…/M/stderr`.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Self

import psutil
import pyspark

from databus.demo.processes import free_port, wait_until
from tests import PATIENCE_S

HOST = "127.0.0.1"
SPARK_HOME = Path(pyspark.__file__).parent
# Small and quick to start; more than one of them run on a machine of tests.
JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dderby.system.durability=test"
_STOP_S = 20.0


class _Java:
    """A process of Spark's, with a working directory and a log."""

    def __init__(self, name: str, folder: Path, command: Sequence[object]) -> None:
        self.name, self.folder = name, folder
        self.log = folder.parent / f"{name}.log"
        folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(word) for word in command],
                cwd=folder,
                env=clean_environment() | {"PYSPARK_PYTHON": sys.executable},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, is_ready: Callable[[], bool]) -> None:
        """Wait until it is ready; raises AssertionError with its log if it ends or is not."""

        def looked() -> bool:
            assert self._process.poll() is None, f"{self.name} ended:\n{self.log.read_text()}"
            return is_ready()

        try:
            wait_until(looked, PATIENCE_S, self.name)
        except TimeoutError:
            raise AssertionError(f"{self.name}:\n{self.log.read_text()}") from None

    def stop(self) -> None:
        """End it and everything that it has started."""
        try:
            family = psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            family = []
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _, alive = psutil.wait_procs(family, _STOP_S)
        for process in alive:
            process.kill()
        psutil.wait_procs(alive, _STOP_S)


class _Servers:
    """Servers that run during a `with`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        raise NotImplementedError

    def _run(self, name: str, *command: object) -> _Java:
        made = _Java(name, self.folder / name, command)
        self._stack.callback(made.stop)
        return made


class StandaloneCluster(_Servers):
    """A master and workers of Spark's standalone cluster. `url` is for `--master`."""

    def __init__(self, folder: Path, workers: int = 2, cores: int = 1, memory: str = "1g") -> None:
        super().__init__(folder)
        self.url = f"spark://{HOST}:{free_port()}"
        self.workers: list[_Java] = []
        self._count, self._cores, self._memory = workers, cores, memory

    def _start(self) -> None:
        port = self.url.rpartition(":")[2]
        package = "org.apache.spark.deploy"
        ports = ("--host", HOST, "--webui-port", 0)
        command = (*spark_class(f"{package}.master.Master"), *ports, "--port", port)
        self.master = self._run("master", *command)
        self.master.wait_for(lambda: "New state: ALIVE" in self.master.log.read_text())
        for number in range(self._count):
            self.start_worker(f"worker-{number}")
        self.master.wait_for(lambda: self.registered() >= self._count)

    def start_worker(self, name: str) -> _Java:
        """Start one more worker, which has its executors' folders in its own."""
        command = (
            *spark_class("org.apache.spark.deploy.worker.Worker"),
            *("--host", HOST, "--webui-port", 0, "--work-dir", self.folder / name),
            *("--cores", self._cores, "--memory", self._memory, self.url),
        )
        self.workers.append(self._run(name, *command))
        return self.workers[-1]

    def registered(self) -> int:
        """Return how many workers have come to the master, since it was started."""
        return self.master.log.read_text().count("Registering worker")

    def executors(self) -> list[psutil.Process]:
        """Return the executors that run now, for those who kill them."""
        found = []
        for worker in self.workers:
            try:
                children = psutil.Process(worker.pid).children()
            except psutil.NoSuchProcess:
                continue
            found += [child for child in children if _is_executor(child)]
        return found


class ConnectServer(_Servers):
    """A server of Spark Connect. `url` is for `SparkSession.builder.remote`."""

    def __init__(
        self,
        folder: Path,
        master: str = "local[2,4]",
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(folder)
        self._master, self._settings = master, settings
        self._port = free_port()
        self.url = f"sc://{HOST}:{self._port}"

    def _start(self) -> None:
        given = {
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.driver.extraJavaOptions": f"-Xss8m {JVM}",
            **QUIET,
            **self._settings,
        }
        pairs = [word for key, value in given.items() for word in ("--conf", f"{key}={value}")]
        kind = "org.apache.spark.sql.connect.service.SparkConnectServer"
        command = (SPARK_HOME / "bin" / "spark-submit", "--master", self._master, "--class", kind)
        self.server = self._run("connect", *command, *pairs, "spark-internal")
        self.server.wait_for(self._listens)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self._port)) == 0


# Of every session of tests: nothing but the loopback, no page, and few partitions.
QUIET: Mapping[str, str] = MappingProxyType(
    {
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": JVM,
        "spark.python.authenticate.socketTimeout": f"{PATIENCE_S:.0f}s",
        "spark.sql.catalogImplementation": "in-memory",
    }
)


def spark_class(name: str) -> list[object]:
    """Return the command that runs a class of Spark's."""
    return [SPARK_HOME / "bin" / "spark-class", name]


def clean_environment() -> dict[str, str]:
    """Return the environment without what would show this process's Python to a worker."""
    strange = re.compile("PYTHON|PYSPARK|SPARK_")
    kept = {name: value for name, value in os.environ.items() if not strange.match(name)}
    return kept | {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "640m",
        "SPARK_DAEMON_JAVA_OPTS": JVM,
    }


def bare_python(folder: Path, packages: Sequence[str]) -> Path:
    """Make an environment that has the packages of these folders; return its interpreter."""
    venv.create(folder, with_pip=False, symlinks=True)
    (own,) = (folder / "lib").glob("python*/site-packages")
    # A path in a .pth file is searched, but .pth files in it, as of an editable install, are not.
    (own / "packages.pth").write_text("\n".join(packages))
    return folder / "bin" / "python"


def _is_executor(process: psutil.Process) -> bool:
    try:
        return "CoarseGrainedExecutorBackend" in " ".join(process.cmdline())
    except psutil.Error:
        return False
