"""`spark.read` of the source database, in ranges of its keys."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from databus.client.spark.arrow.row_types import arrow_schema
from databus.client.spark.source.database_reader import DatabaseReader
from databus.schemas.errors import SettingsError
from tests.mariadb_server import Database
from tests.relay.sources.sqlite.shop import database as sqlite_database, opened

pytest_plugins = ["tests.mariadb"]


def write_settings(folder: Path, uri: str, source: str, **more: str) -> str:
    lines = [f'data_dir = "{folder}"', "[[physical_sources]]", 'name = "shop"', f'uri = "{uri}"']
    lines += [f'sources = ["{source}"]', *(f'{key} = "{value}"' for key, value in more.items())]
    file = folder / "relay.toml"
    file.write_text("\n".join(lines))
    return str(file)


def read(options: Mapping[str, Any]) -> tuple[pa.Table, list[int]]:
    """Return the rows, and how many each task read."""
    texts = {"mode": "database"} | {key: str(value) for key, value in options.items()}
    schema = DatabaseReader.columns(texts)
    reader = DatabaseReader(texts, schema)
    tables = [
        pa.Table.from_batches(reader.read(part), arrow_schema(schema))
        for part in reader.partitions()
    ]
    return pa.concat_tables(tables), [table.num_rows for table in tables]


def test_a_table_is_read_in_ranges_of_its_key_each_row_once(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with sqlite_database(path, "CREATE TABLE t (id INTEGER PRIMARY KEY, a NUMERIC, b REAL)") as db:
        with opened(path, "t"):
            pass
        values = [1, 1.5, "x", b"\x00\xff", None]
        ids = random.Random(1).sample(range(-500, 1500), 300)
        db.executemany("INSERT INTO t VALUES (?, ?, 0.5)", [(n, values[n % 5]) for n in ids])
        settings = write_settings(tmp_path, f"sqlite:{path}", "shop.t")
        options = {"sources": "shop.t", "settings": settings, "partitions": 3, "batchRows": 40}
        rows, counts = read(options)
        few, _ = read(options | {"columns": "A", "where": "id between 0 and 9"})
    assert sorted(rows.column("id").to_pylist()) == sorted(ids)
    assert len(counts) == 3
    assert min(counts) > 60
    texts = {0: "1", 1: "1.5", 2: "x", 3: "x'00ff'", 4: None}
    assert all(row["a"] == texts[row["id"] % 5] for row in rows.to_pylist())
    assert few.column_names == ["a"]
    assert few.num_rows == len([n for n in ids if 0 <= n <= 9])


def test_a_row_inserted_beyond_both_ends_while_it_is_read_belongs_to_a_range(
    tmp_path: Path,
) -> None:
    path = tmp_path / "shop.db"
    with sqlite_database(path, "CREATE TABLE t (id INTEGER PRIMARY KEY)") as db:
        with opened(path, "t"):
            pass
        db.execute("INSERT INTO t VALUES (1), (2), (3)")
        settings = write_settings(tmp_path, f"sqlite:{path}", "shop.t")
        options = {"mode": "database", "sources": "shop.t", "settings": settings, "partitions": "2"}
        reader = DatabaseReader(options, DatabaseReader.columns(options))
        parts = reader.partitions()
        db.execute(f"INSERT INTO t VALUES ({-(2**63)}), (0), (4), ({2**63 - 1})")
        found = [n for part in parts for b in reader.read(part) for n in b.column(0).to_pylist()]
    assert found == [-(2**63), 0, 1, 2, 3, 4, 2**63 - 1]


def test_a_source_with_a_name_of_its_own_is_read_from_its_table(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with sqlite_database(path, "CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT)") as db:
        with opened(path, "t"):
            pass
        db.executemany("INSERT INTO t VALUES (?, 'x')", [(n,) for n in range(50)])
        own = "com.example.shop.Things"
        settings = write_settings(tmp_path, f"sqlite:{path}", "shop.t")
        text = Path(settings).read_text()
        Path(settings).write_text(text.replace('"shop.t"', f'{{name = "{own}", table = "shop.t"}}'))
        rows, counts = read({"sources": own, "settings": settings, "partitions": 2})
        with pytest.raises(SettingsError, match=r"has no source 'shop\.t'; it has com\.example"):
            read({"sources": "shop.t", "settings": settings})
    assert sorted(rows.column("id").to_pylist()) == [*range(50)]
    assert len(counts) == 2


def test_a_table_with_another_key_is_read_by_one_task(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with sqlite_database(path, "CREATE TABLE t (k TEXT PRIMARY KEY, v)") as db:
        with opened(path, "t"):
            pass
        db.execute("INSERT INTO t VALUES ('a', 1), ('b', NULL)")
        settings = write_settings(tmp_path, f"sqlite:{path}", "shop.t")
        rows, counts = read({"sources": "shop.t", "settings": settings, "partitions": 4})
    assert rows.to_pylist() == [{"k": "a", "v": "1"}, {"k": "b", "v": None}]
    assert counts == [2]


def test_wrong_options_say_what_is_right(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with sqlite_database(path, "CREATE TABLE t (id INTEGER PRIMARY KEY)"), opened(path, "t"):
        settings = write_settings(tmp_path, f"sqlite:{path}", "shop.t")
        given = {"mode": "database", "sources": "shop.t", "settings": settings}
        for more, text in (
            ({"sources": "shop.u"}, r"has no source 'shop\.u'; it has shop\.t"),
            ({"sources": "shop.t,shop.u"}, "reads one table"),
            ({"asOf": "3"}, "asOf is only for mode = table"),
            ({"scn": "true"}, "scn is only for mode = table"),
            ({"columns": "x"}, "there is no column 'x'"),
        ):
            with pytest.raises(SettingsError, match=text):
                DatabaseReader.columns(given | more)
        with pytest.raises(SettingsError, match="option settings is missing"):
            DatabaseReader.columns({"mode": "database", "sources": "shop.t"})


@pytest.mark.mariadb
def test_values_of_a_server_are_those_that_spark_s_types_hold(
    database: Database, tmp_path: Path
) -> None:
    database.run(
        "SET time_zone = '+00:00'",
        "CREATE TABLE t (id BIGINT UNSIGNED PRIMARY KEY, p DECIMAL(10,2), w DECIMAL(50,5), d DATE,"
        " at DATETIME(6), ts TIMESTAMP(6) NULL, ti TIME(3), f FLOAT, x VARBINARY(4), j VARCHAR(9))",
        "INSERT INTO t VALUES (1, 1.25, 12345678901234567890123456789012345678901234.5, "
        "'2024-02-29', '2024-01-02 03:04:05.000006', '2024-01-02 03:04:05.5', '-01:00:00.5', 1.5,"
        " x'00ff', 'é'), "
        "(18446744073709551615, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '')",
    )
    password = tmp_path / "password"
    password.write_text(database.server.password)
    settings = write_settings(
        tmp_path, database.server.uri, f"{database.name}.t", password_file=str(password)
    )
    options = {"sources": f"{database.name}.t", "settings": settings, "partitions": 2}
    rows, counts = read(options)
    assert counts == [1, 1]
    first, last = rows.to_pylist()
    assert first == {
        "id": Decimal(1),
        "p": Decimal("1.25"),
        "w": "12345678901234567890123456789012345678901234.50000",
        "d": date(2024, 2, 29),
        "at": datetime(2024, 1, 2, 3, 4, 5, 6),
        "ts": datetime(2024, 1, 2, 3, 4, 5, 500000, tzinfo=UTC),
        "ti": -3600500000,
        "f": 1.5,
        "x": b"\x00\xff",
        "j": "é",
    }
    assert last == dict.fromkeys(first) | {"id": Decimal(2**64 - 1), "j": ""}
