"""What the promises are tested on: relays as processes, databases, a consumer that remembers."""

from __future__ import annotations

import contextlib
import http.client
import json
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from databus.client import DatabusClient
from databus.client.consumer import Consumer, DataEvent
from databus.daemon.tls import client_context
from databus.demo import processes
from databus.demo.private_mariadb import PrivateMariaDB
from databus.demo.processes import Child, free_port, python_module
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.event.v2 import peek
from tests import PATIENCE_S
from tests.mariadb_server import Database, connect

POLL_S = 0.005
FETCH_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer, read whole."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:
        """Return the body's JSON."""
        return json.loads(self.body)


class RunningRelay:
    """`databus relay run` as a process of its own, on a port that stays the same.

    `physical` are its physical sources' settings; `options` the other settings. With `tls_ca` it
    is asked with TLS.
    """

    def __init__(
        self,
        folder: Path,
        *physical: Mapping[str, Any],
        name: str = "relay",
        prefix: Sequence[str] = (),
        http: Mapping[str, Any] | None = None,
        module: str = "databus.cli.main",
        tls_ca: Path | None = None,
        **options: Any,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = (http or {}).get("port") or free_port()
        self._tls = None if tls_ca is None else client_context(tls_ca)
        self.url = f"{'http' if tls_ca is None else 'https'}://127.0.0.1:{self.port}"
        self.data_dir = folder / f"{name}-data"
        self._file = folder / f"{name}.toml"
        self._physical = list(physical)
        self._options = {"data_dir": str(self.data_dir)} | options
        self._http = {**(http or {}), "port": self.port}
        command = python_module(module, "relay", "run", "-v", "-c", self._file)
        self.child = Child(name, [*prefix, *command], folder)

    @property
    def file(self) -> Path:
        """The settings file."""
        return self._file

    @property
    def physical(self) -> list[Mapping[str, Any]]:
        """The settings of its physical sources."""
        return self._physical

    def change(self, **settings: Any) -> None:
        """Change settings of the first physical source, for the next start."""
        self._physical[0] = {**self._physical[0], **settings}

    def launch(self) -> None:
        """Start the process and wait for nothing."""
        self._file.write_text(to_toml(self._options, self._http, self._physical), "utf-8")
        self.child.start()

    def start(self) -> RunningRelay:
        """Start the process and wait until it captures every source."""
        wanted = sum(len(p["sources"]) for p in self._physical)
        return self._launch_until(lambda: self._is_ready(wanted))

    def serve(self) -> RunningRelay:
        """Start the process and wait until it answers, whatever its sources are like."""
        return self._launch_until(self._answers)

    def end(self) -> int:
        """Wait for the process's end; return its exit code."""
        return self.child.wait(PATIENCE_S)

    def get(self, path: str, headers: Mapping[str, str] | None = None, **parameters: Any) -> Answer:
        """GET a path."""
        return self._ask("GET", path, headers, parameters)

    def post(
        self, path: str, headers: Mapping[str, str] | None = None, **parameters: Any
    ) -> Answer:
        """POST to a path."""
        return self._ask("POST", path, headers, parameters)

    def _ask(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None,
        parameters: Mapping[str, Any],
    ) -> Answer:
        query = f"?{urlencode(parameters)}" if parameters else ""
        with contextlib.closing(self.connection()) as connection:
            connection.request(method, path + query, headers=dict(headers or {}))
            with connection.getresponse() as response:
                return Answer(response.status, response.headers, response.read())

    def connection(self) -> http.client.HTTPConnection:
        """Return a connection, which is not open yet."""
        if self._tls is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        return http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=PATIENCE_S, context=self._tls
        )

    def stream(self, checkpoint: Checkpoint | None = None, **parameters: Any) -> Answer:
        """Ask for events of every source."""
        asked: dict[str, Any] = {"sources": self.all_sources(), "size": FETCH_BYTES, "maxev": 2}
        asked["checkPoint"] = (checkpoint or Checkpoint.flexible()).to_json()
        asked["truncate"] = "true"
        return self.get("/stream", **(asked | parameters))

    def all_sources(self) -> str:
        """Return the names of all sources, as the `sources` parameter takes them."""
        listed = [source for p in self._physical for source in p["sources"]]
        return ",".join(one if isinstance(one, str) else one["name"] for one in listed)

    def windows(self, **parameters: Any) -> dict[int, bytes]:
        """Read everything from the oldest window on: the bytes of each window with events."""
        found: dict[int, bytes] = {}
        checkpoint = Checkpoint.flexible()
        while body := (answer := self.stream(checkpoint, **parameters)).body:
            found |= cut_windows(body)
            scn, offset = map(int, answer.headers["x-databus-resume"].split(","))
            assert offset == -1, "a window larger than an answer"
            checkpoint = Checkpoint.at(scn)
        return found

    def problem(self, name: str = "shop") -> str:
        """Return what is wrong with a physical source or its tables; empty when all is well."""
        status = self.get("/health").json()["physicalSources"][name]
        stopped = [one["problem"] for one in status.get("stoppedTables", ())]
        return "; ".join(filter(None, [status["problem"], *stopped]))

    def wait_for_problem(self, text: str, name: str = "shop") -> str:
        """Wait until a physical source has a problem that names something; return its text.

        What was met only once may be the connection's fault: that is no problem yet.
        """

        def is_there() -> bool:
            problem = self.problem(name)
            return text in problem and "seen once" not in problem

        wait_until(is_there, f"a problem with {text!r}", self.tell)
        return self.problem(name)

    def pause(self) -> None:
        """Pause capture of all physical sources, and wait until nothing is read any more."""
        assert self.post("/controlSources/pause").status == 200

        def rests() -> bool:
            sources = self.get("/health").json()["physicalSources"].values()
            return all(one["state"] == "paused" for one in sources)

        wait_until(rests, "the pause", self.tell)

    def max_scn(self, name: str = "shop") -> int:
        """Return the newest window's SCN."""
        scn: int = self.get(f"/bufferInfo/inbound/{name}/0").json()["maxScn"]
        return scn

    def wait_for_scn(self, scn: int, name: str = "shop") -> None:
        """Wait until the ring has a window."""
        wait_until(lambda: self.max_scn(name) >= scn, f"scn {scn}", self.tell)

    def _launch_until(self, is_up: Callable[[], bool]) -> RunningRelay:
        self.launch()
        try:
            wait_until(is_up, f"relay {self.child.name}", self.child.log_tail)
        except BaseException:
            self.child.stop()
            raise
        return self

    def _answers(self) -> bool:
        assert self.child.exit_code is None, self.child.log_tail()
        try:
            return self.get("/admin").body == b"GOOD"
        except OSError:
            return False

    def _is_ready(self, wanted: int) -> bool:
        return (
            self._answers()
            and self.get("/health").status == 200
            and len({s["id"] for s in self.get("/register").json()}) == wanted
        )

    def tell(self) -> str:
        """Return what is known of it: its health and the end of its log."""
        return f"{self.get('/health').body!r}\n{self.child.log_tail()}"


def stream_requests(relay: RunningRelay) -> int:
    """Return how many stream requests a relay has taken."""
    total = relay.get("/containerStats/outbound/http/total").json()
    return int(total["streamRequests"])


@contextmanager
def running(relay: RunningRelay) -> Iterator[RunningRelay]:
    """Stop a relay's process at the end."""
    try:
        yield relay
    finally:
        relay.child.stop()


def to_toml(
    options: Mapping[str, Any], http_: Mapping[str, Any], physical: Sequence[Mapping[str, Any]]
) -> str:
    """Return the TOML of a relay."""

    def lines(table: Mapping[str, Any]) -> list[str]:
        return [f"{key} = {_toml_value(value)}" for key, value in table.items()]

    found = [*lines(options), "[http]", *lines(http_)]
    for one in physical:
        found += ["[[physical_sources]]", *lines(one)]
    return "\n".join([*found, ""])


def _toml_value(value: Any) -> str:
    """Return a value as TOML; JSON's plain values are TOML's, too."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml_value(one)}" for key, one in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    return json.dumps(value)


def cut_windows(body: bytes) -> dict[int, bytes]:
    """Return the bytes of each whole window that has events, by SCN."""
    found, begin, at = {}, 0, 0
    while at < len(body):
        event = peek(body, at)
        if event.is_eop:
            if at > begin:
                found[event.scn] = body[begin : at + event.length]
            begin = at + event.length
        at += event.length
    assert begin == len(body), "the answer ends inside a window"
    return found


class Remembering(Consumer):
    """Remembers whole windows, and that they were whole and in order."""

    def __init__(self) -> None:
        self.windows: list[tuple[int, list[DataEvent]]] = []
        self.rollbacks: list[int] = []
        self.errors: list[BaseException] = []
        self.scn = -1
        self._open: list[DataEvent] = []

    def on_start_data_event_sequence(self, scn: int) -> None:
        self._open = []

    def on_data_event(self, event: DataEvent) -> None:
        assert not self.windows or event.scn > self.windows[-1][0], "it went back"
        self._open.append(event)

    def on_end_data_event_sequence(self, scn: int) -> None:
        assert {event.scn for event in self._open} == {scn}
        self.windows.append((scn, self._open))

    def on_checkpoint(self, scn: int) -> None:
        self.scn = scn

    def on_rollback(self, scn: int) -> None:
        self.rollbacks.append(scn)

    def on_error(self, error: BaseException) -> None:
        self.errors.append(error)

    @property
    def scns(self) -> list[int]:
        """The SCNs of the windows that came."""
        return [scn for scn, _ in self.windows]

    @property
    def events(self) -> list[DataEvent]:
        """All events, in the order in which they came."""
        return [event for _, events in self.windows for event in events]

    def rows(self, source: str, key: str = "id") -> dict[Any, dict[str, Any]]:
        """Return a table's rows as the events leave them."""
        found: dict[Any, dict[str, Any]] = {}
        for event in self.events:
            if event.source != source:
                continue
            before = event.before or {}
            found.pop(before.get(key), None)
            if event.is_delete:
                found.pop(event.row[key], None)
            else:
                found[event.row[key]] = event.row
        return found


@contextmanager
def consuming(
    relays: Sequence[str], sources: Sequence[str], consumer: Consumer, **options: Any
) -> Iterator[DatabusClient]:
    """Run a client with a consumer."""
    quick: dict[str, Any] = {"wait_ms": 1000, "back_off": {"first_s": 0.02, "max_s": 0.2}}
    named = {key: options.pop(key) for key in ("filters", "reader_schemas") if key in options}
    client = DatabusClient(relays=relays, **(quick | options))
    client.register(consumer, sources, **named)
    with client:
        yield client


@dataclass
class Shop:
    """An SQLite file with a table `orders`, written as an application does."""

    path: Path
    connection: sqlite3.Connection = field(init=False)

    def __post_init__(self) -> None:
        self.connection = sqlite3.connect(
            self.path, isolation_level=None, timeout=PATIENCE_S, check_same_thread=False
        )
        self.connection.executescript(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;"
            "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, note TEXT)"
        )

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return the settings of its physical source."""
        uri = f"sqlite:{self.path}?fsync=off"
        return {
            "name": "shop",
            "uri": uri,
            "sources": ["shop.orders"],
            "start": "earliest",
        } | more

    def insert(self, *ids: int, note: str = "x", each: int = 1) -> None:
        """Insert rows, so many in a transaction."""
        for begin in range(0, len(ids), each):
            with self.transaction():
                rows = [(number, note) for number in ids[begin : begin + each]]
                self.connection.executemany("INSERT INTO orders (id, note) VALUES (?, ?)", rows)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Put statements into one transaction."""
        self.connection.execute("BEGIN IMMEDIATE")
        yield
        self.connection.execute("COMMIT")

    def rows(self) -> dict[int, dict[str, Any]]:
        """Return the rows there are."""
        cursor = self.connection.execute("SELECT * FROM orders")
        names = [column[0] for column in cursor.description]
        return {row[0]: dict(zip(names, row, strict=True)) for row in cursor}

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


@contextmanager
def new_database(server: PrivateMariaDB, name: str) -> Iterator[Database]:
    """Make a database with tables `orders` and `people`, and a connection that uses it."""
    with contextlib.closing(connect(server)) as connection:
        database = Database(server, name, connection)
        database.run(
            f"CREATE DATABASE {name} CHARACTER SET utf8mb4",
            f"USE {name}",
            "CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(200), price DECIMAL(8,2))",
            "CREATE TABLE people"
            " (name VARCHAR(40), land CHAR(2), born DATE, PRIMARY KEY (name, land))",
        )
        yield database


def mysql_source(database: Database, folder: Path, **more: Any) -> dict[str, Any]:
    """Return the settings of a physical source with the tables of a database."""
    password = folder / "password"
    password.write_text(database.server.password)
    return {
        "name": "shop",
        "uri": database.server.uri,
        "sources": sources_of(database),
        "start": "earliest",
        "password_file": str(password),
        "reconnect_min_s": 0.05,
        "reconnect_max_s": 0.2,
    } | more


def sources_of(database: Database) -> list[str]:
    """Return the sources that the tables of a database are."""
    return [f"{database.name}.orders", f"{database.name}.people"]


@contextmanager
def meanwhile(run: Callable[[threading.Event], object]) -> Iterator[None]:
    """Call `run` on a thread; set the event that it is given, and wait for it, at the end."""
    ended = threading.Event()
    thread = threading.Thread(target=run, args=(ended,))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def wait_until(
    is_so: Callable[[], object],
    what: str = "it",
    tell: Callable[[], object] = str,
    patience_s: float = PATIENCE_S,
) -> None:
    """Look until something is so; fails, telling what it knows, when it does not become so."""
    try:
        processes.wait_until(is_so, patience_s, what, POLL_S)
    except TimeoutError as error:
        raise AssertionError(f"{error}: {tell()}") from None
