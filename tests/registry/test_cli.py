"""`databus schema`: what it prints and how it fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from databus.cli.main import main
from databus.registry.registry import SchemaRegistry
from databus.registry.store import open_store
from databus.schemas.avro_rows import schema_id
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema
from tests.registry.texts import ORDERS_1, TEXT_ID

COLUMNS = (
    Column("id", "bigint", 0, nullable=False, key_position=0),
    Column("total", "decimal(10,2)", 1),
)
TABLE_1 = avro_schema(Table("shop.orders", COLUMNS))
TABLE_2 = avro_schema(Table("shop.orders", (*COLUMNS, Column("note", "varchar(20)", 2))))


def databus(*words: str | Path) -> Result:
    """Run `databus` with the words."""
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The settings of a relay that has run: one source with two versions."""
    (tmp_path / "data").mkdir()
    registry = SchemaRegistry(open_store(tmp_path / "data"))
    registry.add_source("shop.orders", 40)
    registry.register("shop.orders", TABLE_1, 10)
    registry.register("shop.orders", TABLE_2, 20)
    path = tmp_path / "relay.toml"
    path.write_text(
        'data_dir = "data"\n'
        '[[physical_sources]]\nname = "shop"\nuri = "sqlite:shop.db"\nsources = ["shop.orders"]\n'
    )
    return path


def test_list_shows_every_version_with_its_id_and_start(config: Path) -> None:
    result = databus("schema", "list", "-c", config)
    assert result.exit_code == 0
    lines = [line for line in result.output.splitlines() if "shop.orders" in line]
    assert [line.split("│")[3:6] for line in lines] == [
        [" 1       ", " 10       ", " 2      "],
        [" 2       ", " 20       ", " 3      "],
    ]
    assert schema_id(TABLE_2).hex() in lines[1]


def test_show_gives_fields_with_their_sql_types(config: Path) -> None:
    result = databus("schema", "show", "shop.orders", "-c", config)
    assert result.exit_code == 0
    assert "shop.orders version 2, from SCN 20" in result.output
    assert "null or decimal(10,2)" in result.output
    assert "varchar(20)" in result.output


def test_show_json_is_the_text_to_the_byte(config: Path) -> None:
    result = databus("schema", "show", "shop.orders", "--version", "1", "--json", "-c", config)
    assert result.output == TABLE_1 + "\n"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["show", "shop.nothing"], "Error: unknown source 'shop.nothing'; known: shop.orders"),
        (["show", "shop.orders", "--version", "9"], "Error: shop.orders has versions 1 to 2"),
    ],
)
def test_what_is_not_there_is_one_line_and_exit_1(
    config: Path, words: list[str], problem: str
) -> None:
    result = databus("schema", *words, "-c", config)
    assert result.exit_code == 1
    assert result.output == problem + "\n"


def test_a_relay_that_never_ran_is_said_so(config: Path, tmp_path: Path) -> None:
    config.write_text(config.read_text().replace('"data"', '"elsewhere"'))
    result = databus("schema", "list", "-c", config)
    assert result.exit_code == 1
    assert "has this relay ever run?" in result.output
    assert not (tmp_path / "elsewhere").exists()


def test_check_against_a_file_says_yes(tmp_path: Path) -> None:
    (tmp_path / "old.avsc").write_text(TABLE_1)
    (tmp_path / "new.avsc").write_text(TABLE_2)
    result = databus("schema", "check", tmp_path / "new.avsc", "--against", tmp_path / "old.avsc")
    assert result.exit_code == 0
    assert "reads what" in result.output


def test_check_against_a_source_names_the_version_and_the_field(
    config: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.avsc").write_text(TEXT_ID)
    result = databus(
        "schema", "check", tmp_path / "mine.avsc", "--source", "shop.orders", "-c", config
    )
    assert result.exit_code == 1
    assert result.output.startswith("Error: schema of shop.orders version 1: field 'id'")


def test_check_says_how_many_versions_can_be_read(config: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.avsc").write_text(TABLE_1)
    result = databus(
        "schema", "check", tmp_path / "mine.avsc", "--source", "shop.orders", "-c", config
    )
    assert "reads all 2 versions of shop.orders" in result.output


def test_a_folder_of_hand_made_schemas_can_be_listed(tmp_path: Path) -> None:
    (tmp_path / "shop.orders.1.avsc").write_text(ORDERS_1)
    result = databus("schema", "list", "--dir", tmp_path)
    assert schema_id(ORDERS_1).hex() in result.output


@pytest.mark.parametrize(
    "words", [["list"], ["check", __file__], ["list", "--dir", ".", "-c", __file__]]
)
def test_what_is_meant_must_be_said(words: list[str]) -> None:
    result = databus("schema", *words)
    assert result.exit_code == 2
    assert "give either" in result.output


@pytest.mark.parametrize("command", ["list", "show", "check"])
def test_each_command_has_help_with_an_example(command: str) -> None:
    result = databus("schema", command, "--help")
    assert result.exit_code == 0
    assert f"Example: `databus schema {command}" in result.output
