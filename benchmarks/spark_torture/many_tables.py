"""Many tables in one `databus spark sync`, through DDL and kills; every target equals its table.

A private MariaDB, `databus run` of all its tables, and the job as its users start it, on a
cluster of Spark or on this machine. While transactions go on, tables are altered, made and
emptied, and processes are killed: the driver, an executor, a worker of the cluster with all that
is below it, a Python worker, and `databus run`. In the end all targets are compared with the
tables, and no batch may have been committed twice to a Delta table.
"""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import psutil
from pyiceberg.catalog import load_catalog

from benchmarks.ddl_walk import Walk
from benchmarks.spark_torture.commits import batches_of, torn_transactions, twice_committed
from benchmarks.spark_torture.processes import WORKER, kill_tree
from databus.client.spark.targets.target import open_target
from databus.conf.loading import build_settings
from databus.conf.settings import PhysicalSourceSettings
from databus.demo.private_mariadb import PrivateMariaDB
from databus.demo.processes import Child, python_module
from databus.relay.sources.kind import open_scan
from databus.schemas.errors import DatabusError
from tests.client.spark.spark_servers import StandaloneCluster
from tests.client.spark.targets.target_job import difference
from tests.mariadb_server import Database, fresh_database
from tests.promises.running import mysql_source
from tests.standalone.nodes import Node, made

VICTIMS = ("driver", "executor", "node", "worker", "python")
FORMS = ("delta", "delta+spark", "iceberg", "iceberg+spark", "sql")
LOCAL = "local[2,4]"
PAUSE_S = 0.02  # between transactions
STEP_S = 3.0  # between statements of DDL and kills
SETTLE_S = 600.0


@dataclass(frozen=True, slots=True)
class TablesPlan:
    """The options of the command line."""

    tables: int
    kills: int
    ddl: int
    seed: int
    form: str = "delta"
    on_cluster: bool = True


@dataclass
class TablesOutcome:
    """What was done, and what was wrong."""

    kills: Counter[str] = field(default_factory=Counter)
    transactions: int = 0
    statements: int = 0
    refused: int = 0
    tables: int = 0
    rows: int = 0
    starts: int = 1
    batches: int = 0
    settled_s: float = 0.0
    checked: int = 0  # transactions, parts of which are in several tables
    problems: list[str] = field(default_factory=list)

    def line(self, plan: TablesPlan) -> str:
        """Return the counts."""
        kills = ", ".join(f"{count} {victim}" for victim, count in sorted(self.kills.items()))
        where = "a standalone cluster" if plan.on_cluster else LOCAL
        return (
            f"{plan.form} on {where}, seed {plan.seed}: {self.tables} tables, "
            f"{self.transactions} transactions, {self.statements} statements of DDL "
            f"({self.refused} statements refused by the server); kills: {kills or 'none'}; the job "
            f"was started {self.starts} times, and applied {self.batches} batches; settled after "
            f"{self.settled_s:.0f} s; "
            f"{self.rows} rows compared, {self.checked} transactions looked for in the same batch "
            f"of several tables: {len(self.problems) or 'no'} problems"
        )


class _Source:
    """The tables, as `difference` asks for them."""

    def __init__(self, settings: PhysicalSourceSettings, url: str) -> None:
        self._settings, self.url = settings, url

    def table(self, source: str) -> list[dict[str, Any]]:
        """Return the rows that a table has."""
        alone = self._settings.model_copy(update={"sources": (source,)})
        with contextlib.closing(open_scan(alone)) as scan:
            scan.open()
            return [dict(row) for chunk in scan.chunks(source, 10_000) for row in chunk.rows]


class TablesTorture:
    """One run; its processes belong to the stack."""

    def __init__(self, plan: TablesPlan, folder: Path, stack: ExitStack) -> None:
        self._plan, self._folder, self._stack = plan, folder, stack
        self._random = Random(plan.seed)
        self._options: dict[str, Any] = {}  # of targets, in this process
        self.outcome = TablesOutcome()
        server = stack.enter_context(PrivateMariaDB())
        self._database = stack.enter_context(fresh_database(server))
        names = [f"t{number}" for number in range(plan.tables)]
        self._walk = Walk(self._database, self._random, 100, tables=names)
        self._busy = threading.Lock()
        self._stop = threading.Event()
        self._is_streaming = False

    def run(self) -> TablesOutcome:
        """Run the torture; raises ChildError when the job ends by itself."""
        self._walk.begin()
        if self._plan.form.startswith("iceberg"):
            self._options["catalog"] = _made_catalog(self._folder)
        self._node = self._start_node()
        cluster = self._folder / "cluster"
        self._cluster = (
            self._stack.enter_context(StandaloneCluster(cluster, workers=2))
            if self._plan.on_cluster
            else None
        )
        self._job = Child("job", self._command(), self._folder)
        self._stack.callback(self._end_job)
        self._job.start()
        writer = threading.Thread(target=self._write)
        writer.start()
        try:
            steps = self._steps()
            for number, step in enumerate(steps):
                # Snapshots in the first third; then what follows them, in small batches.
                if number == len(steps) // 3:
                    self._await("the first rows of all tables", self._has_targets)
                    self._is_streaming = True
                time.sleep(STEP_S)
                self._do(step)
        finally:
            self._stop.set()
            writer.join()
        self._settle()
        self._count()
        return self.outcome

    def _start_node(self) -> Node:
        folder = self._folder / "node"
        folder.mkdir()
        server = self._database.server
        (folder / "password").write_text(server.password)
        (folder / "password").chmod(0o600)
        node = self._stack.enter_context(made(folder))
        node.write(
            f'name = "shop"\nuri = "{server.uri}"\nsources = ["{self._database.name}.*"]\n'
            'password_file = "password"'
        )
        node.start()
        node.wait_for(lambda: set(node.statuses().values()) == {"active"})
        return node

    def _target(self, table: str) -> str:
        lake = self._folder / "lake"
        if self._plan.form == "sql":
            return f"sqlite:///{self._folder}/lake.db#{table}"
        if self._plan.form.startswith("iceberg"):
            return f"{self._plan.form}:lake.shop.{table}"
        return f"{self._plan.form}:{lake}/{table}"

    def _command(self) -> list[str]:
        master = LOCAL if self._cluster is None else self._cluster.url
        return python_module(
            "databus.cli.main",
            *("spark", "sync", f"{self._database.name}.*", self._target("{table}")),
            *("--relay", self._node.url, "--bootstrap", self._node.bootstrap_url),
            *("--checkpoint", self._folder / "checkpoint", "--every", "0.2", "--master", master),
            *("--option", "retrySeconds=120"),
            *(word for pair in self._settings() for word in ("--conf", pair)),
        )

    def _settings(self) -> Iterator[str]:
        yield "spark.ui.enabled=false"
        yield "spark.sql.shuffle.partitions=2"
        yield "spark.executor.memory=512m"
        yield "spark.driver.host=127.0.0.1"
        yield f"spark.local.dir={self._folder / 'spark'}"

    # What happens

    def _steps(self) -> list[str]:
        """Return statements and kills in a random order; the last one is a statement."""
        kills = [VICTIMS[number % len(VICTIMS)] for number in range(self._plan.kills)]
        if self._cluster is None:
            kills = ["driver" if victim in ("executor", "worker") else victim for victim in kills]
        steps = [*kills, *(["ddl"] * (self._plan.ddl - 1))]
        self._random.shuffle(steps)
        return [*steps, "ddl"]

    def _write(self) -> None:
        """Write transactions of several tables until the end."""
        chance = Random(self._plan.seed + 1)
        while not self._stop.wait(PAUSE_S):
            with self._busy:
                self._walk.run("START TRANSACTION")
                for _ in range(chance.randint(1, 6)):
                    table = chance.choice(list(self._walk.tables))
                    chance.choice((self._walk.insert, self._walk.update, self._walk.delete))(table)
                self._walk.run("COMMIT")
                self.outcome.transactions += 1

    def _do(self, step: str) -> None:
        if step == "ddl":
            with self._busy:
                self._define()
            return
        self.outcome.kills[step] += 1
        getattr(self, f"_kill_{step}")()

    def _define(self) -> None:
        """Alter a table; now and then make one, or copy one."""
        self.outcome.statements += 1
        chance, tables = self._random.random(), list(self._walk.tables)
        if chance < 0.15:
            name = f"t{len(tables)}"
            self._walk.run(f"CREATE TABLE {name} (id INT PRIMARY KEY, a INT, b VARCHAR(10))")
            self._walk.run(f"INSERT INTO {name} (id, a) VALUES (1, 1), (2, NULL)")
            self._walk.tables = [*tables, name]
        else:
            self._walk.alter(self._random.choice(tables))

    def _kill_driver(self) -> None:
        kill_tree(self._job)
        self._start_job()
        if self._is_streaming:
            # Else later kills would meet a job that has not begun.
            known = self._batches()
            self._await("a batch after it", lambda: self._batches() > known)

    def _start_job(self) -> None:
        self.outcome.starts += 1
        self._job.start()

    def _end_job(self) -> None:
        if self._job.exit_code is None:
            kill_tree(self._job)

    def _kill_node(self) -> None:
        self._node.child.kill()
        self._node.start()

    def _kill_executor(self) -> None:
        assert self._cluster is not None
        if executors := self._cluster.executors():
            self._random.choice(executors).kill()

    def _kill_worker(self) -> None:
        assert self._cluster is not None
        victim = self._random.choice(self._cluster.workers)
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(victim.pid)
            for one in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
        self._cluster.workers.remove(victim)
        self._cluster.start_worker(f"worker-{self.outcome.kills['worker'] + 10}")

    def _kill_python(self) -> None:
        found = []
        for process in psutil.process_iter(["cmdline", "username"]):
            words = process.info["cmdline"] or []
            if words[-1:] == [WORKER] and str(self._folder) in " ".join(self._environment(process)):
                found.append(process)
        if found:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._random.choice(found).kill()

    @staticmethod
    def _environment(process: psutil.Process) -> list[str]:
        try:
            return [*process.environ().values()]
        except psutil.Error:
            return []

    def _await(self, what: str, is_so: Callable[[], bool]) -> None:
        """Wait; the job is started again if it ends. A problem if it is in vain."""
        end_s = time.monotonic() + SETTLE_S
        while not is_so():
            self._check_job()
            if time.monotonic() > end_s:
                self.outcome.problems.append(f"waited in vain for {what}")
                return
            time.sleep(1)

    def _check_job(self) -> None:
        self._job.check()
        if self._job.exit_code is not None:
            self._start_job()

    def _has_targets(self) -> bool:
        names = [f"t{number}" for number in range(self._plan.tables)]
        try:
            for name in names:
                with contextlib.closing(open_target(self._target(name), **self._options)) as target:
                    if target.schema() is None:
                        return False
        except (DatabusError, OSError, ValueError):
            return False
        return True

    def _batches(self) -> int:
        """Return the number of the last batch that Spark has committed; -1 without one."""
        folder = self._folder / "checkpoint" / "commits"
        numbers = [int(one.name) for one in folder.glob("[0-9]*")] if folder.exists() else []
        return max(numbers, default=-1)

    # The end

    def _settle(self) -> None:
        """Wait until all targets equal their tables; note those that do not."""
        begun_s = time.monotonic()
        for table in self._walk.tables:
            self._walk.touch(table)  # a target has the columns of its last row
        left = list(self._walk.tables)
        settings = mysql_source(self._database, self._folder, sources=[])
        source = _Source(_physical(settings, self._database), self._node.bootstrap_url)
        last = {}
        while left and time.monotonic() - begun_s < SETTLE_S:
            self._check_job()
            last = {table: self._difference(source, table) for table in left}
            left = [table for table in left if last[table]]
            time.sleep(1)
        self.outcome.settled_s = time.monotonic() - begun_s
        self.outcome.tables = len(self._walk.tables)
        self.outcome.batches = self._batches() + 1
        self.outcome.refused = self._walk.refused
        self.outcome.problems += [f"{table}: {last[table][:2000]}" for table in left]
        if left:
            self.outcome.problems.append(self._job.log_tail())

    def _difference(self, source: _Source, table: str) -> str:
        target = None
        try:
            target = open_target(self._target(table), **self._options)
            if target.schema() is None:
                return "there is no target"
            name = f"{self._database.name}.{table}"
            return difference(source, name, target, may_be_wider=True)  # type: ignore[arg-type]
        except (DatabusError, OSError, ValueError) as error:
            return repr(error)
        finally:
            if target is not None:
                target.close()

    def _count(self) -> None:
        for table in self._walk.tables:
            ((count,),) = self._database.run(f"SELECT COUNT(*) FROM {table}")
            self.outcome.rows += count
        if self._plan.form.startswith("delta"):
            lake = self._folder / "lake"
            histories = {table: batches_of(lake / table) for table in self._walk.tables}
            self.outcome.problems += twice_committed(histories)
            # One that is made meanwhile is read from its CREATE on, behind the others.
            first = {f"t{number}": histories[f"t{number}"] for number in range(self._plan.tables)}
            checked, problems = torn_transactions(first)
            self.outcome.checked += checked
            self.outcome.problems += problems


def _made_catalog(folder: Path) -> dict[str, str]:
    """Make a catalog; children know it as `lake`, as users of pyiceberg name one."""
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
    }
    for name, value in catalog.items():
        os.environ[f"PYICEBERG_CATALOG__LAKE__{name.upper()}"] = value
    load_catalog("lake", **catalog).create_namespace_if_not_exists("shop")
    return catalog


def _physical(settings: dict[str, Any], database: Database) -> PhysicalSourceSettings:
    return build_settings({**settings, "sources": [f"{database.name}.t0"]}, PhysicalSourceSettings)


def torture_tables(plan: TablesPlan) -> TablesOutcome:
    """Make everything, torture it, and return the results; nothing remains."""
    with ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-tables-"))
        return TablesTorture(plan, Path(name), stack).run()


def drawn(seed: int | None) -> int:
    """Return a seed."""
    return random.randrange(10**6) if seed is None else seed
