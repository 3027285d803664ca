"""`python -m benchmarks.log_identity`: another log at the same positions, in every combination.

A relay captures transactions. Then the log is replaced: RESET MASTER, another
server at the address, or a backup of the same server that was restored and grew
past the point. More transactions are written, and what comes into the ring is
read by somebody who knows every id: each case must end in a stop that names
both logs, or in a correct continuation. Nothing may be lost without a stop.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import click

from benchmarks.adversity.proxy import WireProxy
from benchmarks.adversity.servers import SavedData, Servers
from databus.conf.settings import RelaySettings
from databus.demo.private_mariadb import PrivateMariaDB
from databus.relay.capture.status import State
from databus.relay.relay import Relay
from databus.relay.sources.mysql.source import MysqlSource
from databus.schemas.event.v2 import decode
from tests.mariadb_server import connect
from tools.fetch_test_servers import NEWER_MARIADB

KINDS = ("mariadb", "newer_mariadb", "mysql")
STATES = ("down", "paused", "streaming", "rotating")
HOWS = ("reset", "another", "restored")
STOPPED, CONTINUED, LOST = "stop naming both logs", "correct continuation", "lost"
BEFORE, AFTER = 40, 120
PATIENCE_S = 30.0
_LACKS = "it lacks transactions that were delivered"  # of another server, with GTIDs
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Case:
    """One combination of server, way of replacement and state."""

    kind: str
    how: str
    state: str
    equal: bool = True
    gtids: bool = True
    compressed: bool = False
    checksum: bool = True

    def __str__(self) -> str:
        sizes = "equal" if self.equal else "random"
        gtids = "gtid" if self.gtids else "no gtid"
        packing = "compressed" if self.compressed else "plain"
        checksum = "crc32" if self.checksum else "no checksum"
        return f"{self.kind} {self.how} {self.state} {sizes} {gtids} {packing} {checksum}"


def all_cases() -> list[Case]:
    """Return every combination; MariaDB always has GTIDs."""
    bools = (True, False)
    found = itertools.product(KINDS, HOWS, STATES, bools, bools, bools, bools)
    cases = [Case(*values) for values in found]
    return [case for case in cases if case.gtids or case.kind == "mysql"]


def sample(count: int, seed: int) -> list[Case]:
    """Return a sample, balanced over servers, ways and states."""
    cases = all_cases()
    Random(seed).shuffle(cases)
    turns: Counter[tuple[str, str, str]] = Counter()
    places: dict[Case, int] = {}
    for case in cases:
        group = (case.kind, case.how, case.state)
        places[case] = turns[group]
        turns[group] += 1
    return sorted(cases, key=places.__getitem__)[:count]


class Writer:
    """Writes rows with rising ids into the server behind `port`."""

    def __init__(self, server: PrivateMariaDB, case: Case, seed: int) -> None:
        self._server = server
        self._case = case
        self._draw = Random(seed)
        self.ids: list[int] = []
        self._next = 1001  # ids of one length

    def prepare(self) -> None:
        """Create the table, and start the log after it."""
        self.run(
            "DROP DATABASE IF EXISTS shop",
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY, note VARCHAR(2000))",
            *_log_options(self._case),
            "RESET MASTER",
        )

    def write(self, count: int) -> None:
        """Write transactions of one row each."""
        statements = []
        for _ in range(count):
            size = 300 if self._case.equal else self._draw.randint(1, 900)
            statements.append(f"INSERT INTO shop.orders VALUES ({self._next}, '{'x' * size}')")
            self.ids.append(self._next)
            self._next += 1
        self.run(*statements)

    def begin_anew(self, server: PrivateMariaDB | None = None) -> None:
        """Forget the written rows: another history with other ids follows."""
        self._server = server or self._server
        self.ids = []
        self._next = 5001

    def run(self, *statements: str) -> None:
        """Run statements."""
        with contextlib.closing(connect(self._server)) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)


def _log_options(case: Case) -> Iterator[str]:
    yield f"SET GLOBAL binlog_checksum = {'CRC32' if case.checksum else 'NONE'}"
    flag = "ON" if case.compressed else "OFF"
    if case.kind != "mysql":
        yield f"SET GLOBAL log_bin_compress = {flag}"
        yield "SET GLOBAL log_bin_compress_min_len = 10"
        return
    yield f"SET GLOBAL binlog_transaction_compression = {flag}"


class Scene:
    """One case: servers, a relay, and a reader of its ring."""

    def __init__(self, case: Case, servers: Servers, folder: Path, seed: int) -> None:
        self.case = case
        self._servers = servers
        self._folder = folder
        self._seed = seed
        self._opened = contextlib.ExitStack()
        self._relay: Relay | None = None

    def __enter__(self) -> Scene:
        self.server = self._start_server("first", 1)
        self.proxy = self._opened.enter_context(WireProxy(self.server.port))
        self.writer = Writer(self.server, self.case, self._seed)
        self.writer.prepare()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop_relay()
        self._opened.close()

    def _start_server(self, name: str, number: int) -> PrivateMariaDB:
        options: dict[str, str | int] = {"server-id": number}
        if self.case.kind == "mysql" and not self.case.gtids:
            options |= {"gtid-mode": "OFF", "enforce-gtid-consistency": "OFF"}
        directory = self._folder / name
        if self.case.kind == "newer_mariadb":
            server = PrivateMariaDB(
                directory, basedir=NEWER_MARIADB.find(), options={"ssl": "OFF", **options}
            )
        else:
            kind: Any = self.case.kind
            server = self._servers.make(kind, directory, options)
        self._opened.callback(server.close)
        server.start()
        return server

    def other_server(self) -> PrivateMariaDB:
        """Start another server, with the same table at the same position of its log."""
        other = self._start_server("second", 2)
        self.writer.begin_anew(other)
        self.writer.prepare()
        (self._folder / "password").write_text(other.password)
        self.proxy.target = other.port
        return other

    def start_relay(self) -> None:
        """Start the relay; its folder has its position."""
        password = self._folder / "password"
        if not password.exists():
            password.write_text(self.server.password)
        settings = RelaySettings.model_validate(
            {
                "data_dir": self._folder / "relay",
                "max_scn": {"flush_s": 0.05},
                "physical_sources": [
                    {
                        "name": "shop",
                        "uri": f"mysql://{self.server.user}@127.0.0.1:{self.proxy.port}",
                        "password_file": password,
                        "sources": ["shop.orders"],
                        "ring_bytes": 4 << 20,
                        "start": "earliest",
                        "reconnect_min_s": 0.05,
                        "reconnect_max_s": 0.2,
                        "switch_after_s": 0.2,
                    }
                ],
            }
        )
        settings.data_dir.mkdir(exist_ok=True)
        history = settings.data_dir / "shop.history"
        self._relay = Relay(settings, lambda found: MysqlSource(found, history=history))
        self._relay.start()

    @property
    def relay(self) -> Relay:
        """The running relay."""
        assert self._relay is not None
        return self._relay

    def stop_relay(self) -> None:
        """Stop the relay if it runs."""
        relay, self._relay = self._relay, None
        if relay is not None:
            relay.stop()

    def ids(self) -> list[int]:
        """Return the ids in the ring, in order."""
        reader = self.relay.physical_sources["shop"].reader
        found, at = [], 0
        data = reader.read(reader.head, reader.capacity_bytes)
        while at < len(data):
            event, at = decode(data, at)
            if isinstance(event.key, int) and event.src_id > 0:
                found.append(event.key)
        return found

    def wait_for(self, is_there: Callable[[], bool], what: str) -> None:
        """Wait for a condition; raises TimeoutError."""
        deadline = time.monotonic() + PATIENCE_S
        while not is_there():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.case}: {what}: {self.relay.status()['shop']}")
            time.sleep(_POLL_S)


def run_case(case: Case, servers: Servers, folder: Path, seed: int) -> tuple[str, str]:
    """Return a case's outcome, and the relay's message."""
    with Scene(case, servers, folder, seed) as scene:
        scene.start_relay()
        saved = _prepare(scene)
        scene.writer.write(BEFORE)
        if case.state == "rotating":
            scene.writer.run("FLUSH BINARY LOGS")
            scene.writer.write(3)
        before = list(scene.writer.ids)
        scene.wait_for(lambda: scene.ids() == before, "all before")
        capture = scene.relay.physical_sources["shop"].capture
        if case.state == "down":
            scene.stop_relay()
        elif case.state == "paused":
            capture.pause()
            capture.wait_for(State.PAUSED, PATIENCE_S)
        _replace(scene, saved)
        if case.state == "rotating":
            scene.writer.run("FLUSH BINARY LOGS")
        scene.writer.write(AFTER)
        if case.state == "down":
            scene.start_relay()
        elif case.state == "paused":
            capture.start()
        return _outcome(scene, before)


def _prepare(scene: Scene) -> SavedData | None:
    if scene.case.how != "restored":
        return None
    scene.writer.write(BEFORE // 2)
    return SavedData(scene.server, scene._folder / "saved")


def _replace(scene: Scene, saved: SavedData | None) -> None:
    writer = scene.writer
    if saved is not None:
        saved.restore()
        writer.begin_anew()
    elif scene.case.how == "another":
        scene.other_server()
        scene.proxy.cut()
    else:
        writer.run("RESET MASTER")
        writer.begin_anew()


def _outcome(scene: Scene, before: Sequence[int]) -> tuple[str, str]:
    """Wait for a stop, or for something new in the ring, and judge it."""
    deadline = time.monotonic() + PATIENCE_S
    text = ""
    while time.monotonic() < deadline:
        status = scene.relay.status()["shop"]
        text = str(status["problem"])
        found = scene.ids()
        if found != list(before):
            return (CONTINUED if found == [*before, *scene.writer.ids] else LOST), text
        if status["state"] == "error":
            names_both = ("Kept: " in text and "Found: " in text) or _LACKS in text
            return (STOPPED if names_both and not scene.relay.is_healthy else LOST), text
        time.sleep(_POLL_S)
    return LOST, f"nothing happened: {text}"


def run(cases: Sequence[Case], seed: int, echo: Callable[[str], None]) -> Counter[str]:
    """Run cases; return the count of each outcome."""
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="databus-identity-") as name:
        servers = Servers(Path(name) / "templates")
        (Path(name) / "templates").mkdir()
        for number, case in enumerate(cases):
            folder = Path(name) / str(number)
            folder.mkdir()
            outcome, text = run_case(case, servers, folder, seed + number)
            shutil.rmtree(folder, ignore_errors=True)
            outcomes[outcome] += 1
            echo(f"{case}: {outcome}" + (f": {text}" if outcome == LOST else ""))
    return outcomes


@click.command()
@click.option("--all", "is_all", is_flag=True, help="Every combination, not a sample.")
@click.option("--cases", default=12, show_default=True, help="How large the sample is.")
@click.option("--seed", default=1, show_default=True)
def main(is_all: bool, cases: int, seed: int) -> None:
    """Replace the log under a relay, in every combination; exit 1 when anything is lost."""
    outcomes = run(all_cases() if is_all else sample(cases, seed), seed, click.echo)
    click.echo(", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()))
    raise SystemExit(1 if outcomes[LOST] else 0)


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.log_identity")
