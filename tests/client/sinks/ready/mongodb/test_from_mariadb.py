"""`databus sink run` from a MariaDB with a relay: rows of all types become documents."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from bson import Decimal128, Int64

from databus.demo.databases import Session
from databus.demo.processes import python_module, wait_until
from databus.demo.stage import Stage
from tests import PATIENCE_S
from tests.client.sinks.ready.mongodb.conftest import Target

pytestmark = [pytest.mark.mongodb, pytest.mark.mariadb]

# By column: its type, a literal, and what MongoDB has.
TYPES: dict[str, tuple[str, str, Any]] = {
    "tiny": ("TINYINT", "-128", -128),
    "big": ("BIGINT", "-9223372036854775808", -(1 << 63)),
    "ubig": ("BIGINT UNSIGNED", "18446744073709551615", Decimal128("18446744073709551615")),
    "f": ("FLOAT", "0.1", 0.1),
    "d": ("DOUBLE", "1.5e300", 1.5e300),
    "n": ("DECIMAL(34,4)", "-0.0100", Decimal128("-0.0100")),
    "day": ("DATE", "'2026-02-28'", datetime(2026, 2, 28, tzinfo=UTC)),
    "at": ("DATETIME", "'1000-01-01 00:00:01'", datetime(1000, 1, 1, 0, 0, 1, tzinfo=UTC)),
    "at3": (
        "DATETIME(3)",
        "'2026-02-28 23:59:59.999'",
        datetime(2026, 2, 28, 23, 59, 59, 999000, UTC),
    ),
    "at6": ("DATETIME(6)", "'2026-02-28 23:59:59.999999'", "2026-02-28T23:59:59.999999"),
    "ts": ("TIMESTAMP NULL", "FROM_UNIXTIME(1e9)", datetime.fromtimestamp(1e9, UTC)),
    "ts6": (
        "TIMESTAMP(6) NULL",
        "FROM_UNIXTIME(1000000000.000001)",
        "2001-09-09T01:46:40.000001+00:00",
    ),
    "t": ("TIME(6)", "'-838:59:58.000001'", "-838:59:58.000001"),
    "y": ("YEAR", "2026", 2026),
    "s": ("VARCHAR(20) CHARSET utf8mb4", "'ä$ü.x'", "ä$ü.x"),
    "e": ("ENUM('a','b')", "'b'", "b"),
    "bits": ("BIT(9)", "b'100000001'", b"\x01\x01"),
    "bin": ("VARBINARY(9)", "x'00ff27'", b"\0\xff'"),
    "`a.$b`": ("INT", "5", 5),
}
WIDE = (
    f"CREATE TABLE wide (id INT PRIMARY KEY, {', '.join(f'{n} {t[0]}' for n, t in TYPES.items())})"
)
ORDERS = "CREATE TABLE orders (shop INT, id INT, v INT, PRIMARY KEY (shop, id))"
SETTINGS = """
data_dir = "{state}"
relays = ["{url}"]

[[sinks]]
name = "mongo"
kind = "mongodb"
sources = ["shop.*"]
options = {{ url = "{mongo}" }}
flush = {{ rows = 20, seconds = 0.02 }}
"""


@pytest.fixture(scope="module")
def made() -> Iterator[Stage]:
    with Stage("mysql", [WIDE, ORDERS], ["shop.wide", "shop.orders"]) as made:
        made.start_relay()
        yield made


@pytest.fixture
def session(made: Stage, target: Target, tmp_path: Path) -> Iterator[Session]:
    """Return a session of a database whose changes a running sink writes to the target."""
    settings = made.folder / "sink.toml"
    # A folder of its own: the target is empty, and to go on there is refused.
    text = SETTINGS.format(state=tmp_path / "state", url=made.url, mongo=target.server.url)
    settings.write_text(text)
    sinks = made.child("sinks", python_module("databus.cli.main", "sink", "run", "-c", settings))
    sinks.start()
    with closing(made.database.connect()) as session:
        yield session
    sinks.kill()


def become(target: Target, collection: str, wanted: dict[Any, Any]) -> None:
    """Wait until the collection has these documents, and no SCN is missing."""

    def found() -> dict[Any, Any]:
        documents = target.documents(collection)
        assert all(type(one.pop("databus_scn")) is Int64 for one in documents.values())
        return documents

    wait_until(lambda: found() == wanted, PATIENCE_S, collection)


def test_rows_of_all_types_are_read_back_equal(target: Target, session: Session) -> None:
    literals = ", ".join(one[1] for one in TYPES.values())
    session.execute(f"INSERT INTO wide VALUES (1, {literals})")
    session.execute("INSERT INTO wide (id) VALUES (2)")
    values = {name.strip("`"): one[2] for name, one in TYPES.items()}
    empty: dict[str, Any] = dict.fromkeys(values)
    become(target, "wide", {1: {"id": 1, **values}, 2: {"id": 2, **empty}})


def test_documents_follow_updates_keys_deletes_a_truncate_and_an_alter(
    target: Target, session: Session
) -> None:
    def row(shop: int, key: int, v: int) -> dict[str, Any]:
        return {"shop": shop, "id": key, "v": v}

    session.begin()
    for key in range(1, 5):
        session.execute("INSERT INTO orders VALUES (1, ?, ?)", [key, key])
    session.execute("UPDATE orders SET v = 7 WHERE id = 1")
    session.execute("UPDATE orders SET v = 8 WHERE id = 1")  # again, of one transaction
    session.execute("DELETE FROM orders WHERE id = 2")
    session.execute("UPDATE orders SET shop = 2 WHERE id = 3")
    session.commit()
    # The parts of `_id` are in the order of their names.
    wanted = {(1, 1): row(1, 1, 8), (3, 2): row(2, 3, 3), (4, 1): row(1, 4, 4)}
    become(target, "orders", wanted)
    session.begin()  # two keys change places
    session.execute("UPDATE orders SET id = 99 WHERE id = 1")
    session.execute("UPDATE orders SET id = 1 WHERE id = 4")
    session.execute("UPDATE orders SET id = 4 WHERE id = 99")
    session.commit()
    become(target, "orders", wanted | {(4, 1): row(1, 4, 8), (1, 1): row(1, 1, 4)})
    session.execute("TRUNCATE orders")
    session.execute("ALTER TABLE orders DROP COLUMN v, ADD COLUMN name VARCHAR(9)")
    session.execute("INSERT INTO orders VALUES (1, 1, 'ä')")
    become(target, "orders", {(1, 1): {"shop": 1, "id": 1, "name": "ä"}})
