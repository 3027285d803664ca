"""`databus schema generate`: a schema from a table's columns, and nothing touched."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from databus.cli.main import main
from databus.schemas.avro_meta import field_meta, record_meta
from tests.mariadb_server import Database

pytest_plugins = ["tests.mariadb"]


def generate(*words: str | Path, env: dict[str, str] | None = None) -> Result:
    """Run `databus schema generate` with the words."""
    return CliRunner(env=env).invoke(main, ["schema", "generate", *map(str, words)])


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A database file with one table."""
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("create table orders (id integer primary key, note text, total real)")
    return path


def test_a_table_of_an_sqlite_file_becomes_a_record(shop: Path) -> None:
    before = shop.read_bytes()
    result = generate("shop.orders", "--uri", f"sqlite:{shop}")
    assert result.exit_code == 0
    record = json.loads(result.output)
    assert (record["namespace"], record["name"]) == ("shop", "orders")
    assert [f["name"] for f in record["fields"]] == ["id", "note", "total"]
    assert record_meta(record)["key"] == ["id"]
    assert shop.read_bytes() == before


def test_the_settings_say_where_a_source_is(shop: Path, tmp_path: Path) -> None:
    config = tmp_path / "relay.toml"
    config.write_text(
        'data_dir = "data"\n'
        '[[physical_sources]]\nname = "shop"\nuri = "sqlite:shop.db"\nsources = ["shop.orders"]\n'
    )
    assert json.loads(generate("shop.orders", "-c", config).output)["name"] == "orders"
    missing = generate("shop.nothing", "-c", config)
    assert missing.exit_code == 1
    assert missing.output == "Error: unknown source 'shop.nothing'; known: shop.orders\n"


def test_a_source_with_a_name_of_its_own_is_found_by_it_and_by_its_table(
    shop: Path, tmp_path: Path
) -> None:
    own = "com.example.shop.Orders"
    config = tmp_path / "relay.toml"
    config.write_text(
        'data_dir = "data"\n[[physical_sources]]\nname = "shop"\nuri = "sqlite:shop.db"\n'
        f'sources = [{{ name = "{own}", table = "shop.orders" }}]\n'
    )
    record = json.loads(generate(own, "-c", config).output)
    assert (record["namespace"], record["name"]) == ("com.example.shop", "Orders")
    assert record_meta(record)["table"] == "shop.orders"
    written = generate("shop.orders", "-c", config, "--out", tmp_path)
    assert json.loads((tmp_path / f"{own}.1.avsc").read_text()) == record, written.output


def test_files_are_written_with_the_next_free_version(shop: Path, tmp_path: Path) -> None:
    for version in (1, 2):
        result = generate("shop.orders", "--uri", f"sqlite:{shop}", "--out", tmp_path)
        path = tmp_path / f"shop.orders.{version}.avsc"
        assert result.output == f"wrote {path}\n"
        assert json.loads(path.read_text())["name"] == "orders"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["shop.nothing", "--uri", "sqlite:{shop}"], "known: orders"),
        (["shop.orders", "--uri", "sqlite:{shop}.missing"], "unable to open database file"),
        (["shop.orders", "--uri", "generator:?rate=1"], "has no tables"),
        (["shop.orders", "--uri", "nonsense"], "must begin with a scheme"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_1(shop: Path, words: list[str], problem: str) -> None:
    result = generate(*(word.format(shop=shop) for word in words))
    assert result.exit_code == 1
    assert problem in result.output
    assert result.output.count("\n") == 1


@pytest.mark.mariadb
def test_a_table_of_a_mariadb_server_becomes_a_record(database: Database) -> None:
    database.run("CREATE TABLE orders (id BIGINT UNSIGNED PRIMARY KEY, total DECIMAL(10,2))")
    server = database.server
    uri = f"mysql://{server.user}@127.0.0.1:{server.port}"
    result = generate(
        f"{database.name}.orders", "--uri", uri, "--password-env", "PW", env={"PW": server.password}
    )
    assert result.exit_code == 0, result.output
    types = {f["name"]: field_meta(f)["sqlType"] for f in json.loads(result.output)["fields"]}
    assert types == {"id": "bigint(20) unsigned", "total": "decimal(10,2)"}


def test_generate_has_help_with_an_example() -> None:
    result = generate("--help")
    assert result.exit_code == 0
    assert "Example: `databus schema generate shop.orders" in result.output
