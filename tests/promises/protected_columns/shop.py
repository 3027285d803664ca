"""A shop with personal data in two databases, and all that a node answers about it."""

from __future__ import annotations

import json
import sqlite3
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Protocol
from urllib.parse import quote, urlencode

from databus.demo.processes import free_port
from databus.schemas.checkpoint import Checkpoint
from tests import PATIENCE_S
from tests.mariadb_server import Database
from tests.relay.serving.canal.raw_client import RawClient, SeenEntry
from tests.relay.serving.ptubes.stock import NO_CHECKPOINT, StockClient
from tests.standalone.nodes import Node

SECRET = "s3cr3t"
PARTS = """
[[physical_sources.columns]]
tables = ["{users}"]
exclude = ["password", "token*"]
mask = {{ email = "hash", phone = "redact", ssn = "redact", note = "truncate:8" }}

[[physical_sources.columns]]
tables = ["{logins}"]
mask = {{ email = "hash" }}

[canal]
port = {canal}
[[canal.destinations]]
name = "example"
physical_sources = ["shop"]

[ptubes]
port = {ptubes}
monitor_port = {monitor}
[[ptubes.reader_tasks]]
name = "reader"
physical_source = "shop"
"""
_SECONDS = 3  # Canal's unit
_LEGACY = ("sources", "physicalSources", "metrics", "health", "ready", "admin")


class Shop(Protocol):
    """Tables `users`, `logins` and `plain` in a database."""

    name: str
    more: str  # settings of the physical source

    def run(self, *statements: str) -> object:
        """Run statements, each in a transaction."""


class SqliteShop:
    """A shop in an SQLite file, with a relay log."""

    name = "shop"

    def __init__(self, folder: Path) -> None:
        self._path = folder / "shop.db"
        self.more = f'uri = "sqlite:{self._path}"\n[physical_sources.log]\nsegment_s = 3600'

    def run(self, *statements: str) -> None:
        """Run statements, each in a transaction."""
        with closing(sqlite3.connect(self._path, timeout=PATIENCE_S, isolation_level=None)) as shop:
            for statement in statements:
                shop.execute(statement)


class MariadbShop:
    """A shop in MariaDB, whose log is read a second time by consumers that are late."""

    def __init__(self, folder: Path, database: Database) -> None:
        self._database, self.name = database, database.name
        password = folder / "password"
        password.write_text(database.server.password)
        password.chmod(0o600)
        self.more = f'uri = "{database.server.uri}"\npassword_file = "{password}"'

    def run(self, *statements: str) -> object:
        """Run statements, each in a transaction."""
        return self._database.run("SET sql_mode = ''", *statements)


def fill(shop: Shop) -> None:
    """Make the tables, with rows."""
    shop.run(
        "CREATE TABLE users (id INT PRIMARY KEY, email VARCHAR(100) NOT NULL, phone VARCHAR(40), "
        "ssn VARCHAR(30) NOT NULL, note VARCHAR(200), password VARCHAR(100), born DATE, plan TEXT)",
        "CREATE TABLE logins (email VARCHAR(100) NOT NULL PRIMARY KEY, n INT)",
        "CREATE TABLE plain (id INT PRIMARY KEY, filler TEXT)",
    )
    shop.run(*(user(number) for number in range(30)))
    shop.run(*(f"INSERT INTO logins VALUES ('{SECRET}{n}@x', {n})" for n in range(30)))


def user(number: int, more: str = "") -> str:
    """Return the statement that inserts a user."""
    values = f"'{SECRET}{number}@x', '{SECRET}tel', '{SECRET}ssn', 'visible {SECRET}'"
    return (
        f"INSERT INTO users VALUES ({number}, {values}, '{SECRET}pw', '1990-01-02', 'free'{more})"
    )


def write_settings(node: Node, shop: Shop) -> None:
    """Write the settings of a node that protects the personal data."""
    key = node.folder / "mask.key"
    key.write_text("a key of enough characters\n")
    key.chmod(0o600)
    ports = {"canal": free_port(), "ptubes": free_port(), "monitor": free_port()}
    tables = [f"{shop.name}.{one}" for one in ("users", "logins", "plain")]
    parts = PARTS.format(users=tables[0], logins=tables[1], **ports)
    node.write(
        f'name = "shop"\nsources = {json.dumps(tables)}\nring_bytes = "64KiB"\n'
        f'mask_key_file = "mask.key"\n{shop.more}\n{parts}'
    )


class RecordedClient(RawClient):
    """A client of Canal that keeps every byte that comes."""

    def __init__(self, address: str) -> None:
        self.recorded = bytearray()
        super().__init__(address)

    def _read(self, size: int) -> bytes:
        data = super()._read(size)
        self.recorded += data
        return data


def answers(node: Node, sources: Sequence[str], scn: int) -> Iterator[tuple[str, bytes]]:
    """Yield what the node answers to every GET that it has, and to the clients of its doors."""
    for url in (node.url, node.bootstrap_url):
        document = json.loads(get(f"{url}/api/v1/openapi.json"))
        paths = [path for path, verbs in document["paths"].items() if "get" in verbs]
        for path in [*_filled(paths, ("shop", *sources)), *(f"/{one}" for one in _LEGACY)]:
            yield f"{url}{path}", get(f"{url}{path}")
    for source in sources:
        path = f"/api/v1/physicalSources/shop/rows?source={source}"
        yield f"rows of {source}", get(node.url + path)
    ids = ",".join(str(number + 1) for number in range(len(sources)))
    for after in (scn, None):
        place = Checkpoint.at(scn) if after is not None else Checkpoint.flexible()
        # Long enough for a second reading of the database's log to begin.
        asked = {"sources": ids, "size": 8 << 20, "wait": 20_000, "checkPoint": place.to_json()}
        yield f"/stream {after}", get(f"{node.url}/stream?{urlencode(asked)}")
    yield "/register", get(f"{node.url}/register?sources={ids}")


def _filled(paths: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    for path in paths:
        parts = path.split("{")
        for found in product(names, repeat=len(parts) - 1):
            rest = (part.partition("}")[2] for part in parts[1:])
            filled = (quote(name, safe="") + text for name, text in zip(found, rest, strict=True))
            yield "".join((parts[0], *filled))


def get(url: str) -> bytes:
    """Return the body of an answer, whatever its status."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            data: bytes = answer.read()
    except urllib.error.HTTPError as refused:
        with refused:
            data = refused.read()
    return data


def said_by_doors(node: Node, shop: Shop) -> tuple[bytes, bytes]:
    """Return the bytes that a client of Canal and one of Ptubes get, up to the newest row."""
    text = node.file.read_text()
    canal = text.partition("[canal]\nport = ")[2].partition("\n")[0]
    ptubes = int(text.partition("[ptubes]\nport = ")[2].partition("\n")[0])
    client = RecordedClient(f"127.0.0.1:{canal}")
    with client:
        client.login().subscribe()
        entries: list[SeenEntry] = []
        while not any(entry.table.endswith(".users") for entry in entries[-9:]):
            batch = client.get(1000, 1, _SECONDS)
            entries += batch.entries
            client.ack(batch.id)
    tables = [f"{shop.name}.{one}" for one in ("users", "logins", "plain")]
    with StockClient(ptubes) as reader:
        reader.subscribe(tables=tables, checkpoint=NO_CHECKPOINT, ddl=True)
        body = {"batchSize": 1000, "timeoutMs": 500, "maxByteSize": 1 << 20}
        fetched = [reader.ask("/v1/fetchMessages", body) for _ in range(3)]
    return bytes(client.recorded), b"".join(fetched)
