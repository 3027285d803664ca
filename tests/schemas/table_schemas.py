"""The schemas of 200 tables, made at random from a fixed seed; together they have every type."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from random import Random
from typing import Any

from databus.schemas.table import Column, Table
from databus.schemas.table_change import TableChange, shape_id, with_change
from databus.schemas.table_schema import avro_schema
from tests.schemas.test_rows import MYSQL, SQLITE

COUNT = 200
SQL_TYPES = {
    "mysql": [
        *MYSQL,
        *("varchar(7)", "decimal(11,2)", "bigint(20) unsigned zerofill", "enum('it''s','\\\\')"),
        *("set('é','\"q\";=%')", "geometrycollection", "inet6", "timestamp", "longblob"),
    ],
    "sqlite": [*SQLITE, "", "VARCHAR(20)", "DECIMAL(10,2)", 'ODD "TYPE"; é = 1'],
    "postgres": [
        json.dumps({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 4}),
        json.dumps({"type": "string", "logicalType": "uuid"}),
        '"double"',
    ],
}
_NAMES = [
    "id",
    "größe",
    "a b",
    "a-b",
    "1st",
    'quo"te',
    "se;mi",
    "e=q",
    "back\\slash",
    "%25",
    "日本",
]
_SOURCES = ["shop.orders", "com.example.shop.Orders", "orders", "my-shop.1.order lines", "é.ü"]


def table_schemas() -> list[str]:
    """Return the texts, always the same: each third is that of a table after an ALTER."""
    texts = []
    for seed in range(COUNT):
        random = Random(seed)
        table = _table(random, seed)
        text = avro_schema(table)
        texts.append(_altered(random, table, text) if seed % 3 == 0 else text)
    return texts


def _table(random: Random, seed: int) -> Table:
    dialect = random.choice(["mysql", "mysql", "mysql", "sqlite", "postgres"])
    pool = SQL_TYPES[dialect]
    # Each dialect's types in turn, so that none is left to chance.
    types = [pool[seed % len(pool)], *random.choices(pool, k=random.randrange(12))]
    names = random.sample([*_NAMES, *(f"c{number}" for number in range(8))], len(types))
    columns = tuple(
        _column(random, dialect, name, sql_type, position)
        for position, (name, sql_type) in enumerate(zip(names, types, strict=True))
    )
    return Table(random.choice(_SOURCES), columns, dialect)


def _column(random: Random, dialect: str, name: str, sql_type: str, position: int) -> Column:
    own_type = sql_type if dialect == "postgres" else None
    shown = "numeric" if own_type is not None else sql_type
    is_key = position < random.randrange(3)
    key_position = position if is_key else None
    return Column(name, shown, position, random.random() < 0.5, key_position, own_type)


def _altered(random: Random, table: Table, text: str) -> str:
    last = table.columns[-1]
    change = TableChange(random.randrange(2**40), shape_id(text))
    kinds: list[dict[str, Any]] = [
        {"renamed": {last.name: "älter"}},
        {"reload": {last.name: "decimal(10,4) → decimal(10,2) may round", "": 'why "; = %'}},
        {"is_emptied": True},
    ]
    added = _VALUES.get(last.sql_type)
    if added is not None:
        kinds = [{"added": {last.name: added}}]
    chosen = random.choice(kinds)
    return with_change(text, TableChange(change.scn, change.before, **chosen))


_VALUES = {
    "int": 7,
    "bigint": -(2**63),
    "double": 1.5e-7,
    "decimal(10,2)": Decimal("-1.20"),
    "varchar(20)": 'é "q"; = % \\ \n',
    "blob": b"\x00\xff;",
    "date": date(2024, 2, 29),
}
