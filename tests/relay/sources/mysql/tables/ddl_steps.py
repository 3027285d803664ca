"""Random DDL for one or two tables: text that a server takes, most of the time."""

from __future__ import annotations

import random
from collections.abc import Sequence

_COMMON = [
    "int", "INTEGER UNSIGNED", "tinyint(1)", "bool", "smallint zerofill", "mediumint(5)",
    "bigint unsigned", "int8", "middleint unsigned", "decimal", "numeric(5)", "dec(7,2) unsigned",
    "float", "float(30)", "float(7,3)", "double precision unsigned", "real", "bit", "bit(17)",
    "year", "date", "time(3)", "datetime(0)", "datetime(6)", "timestamp(2)", "timestamp",
    "char", "char(7)", "varchar(30)", "character varying(9)", "nchar(5)", "national varchar(6)",
    "nvarchar(4)", "long varchar", "long varbinary", "tinytext", "text", "text(70)", "text(9000)",
    "mediumtext", "longtext", "blob", "blob(200)", "tinyblob", "binary", "binary(5)",
    "varbinary(20)", "json", "geometry", "point", "geometrycollection", "char(4) byte",
    "varchar(8) character set latin1", "varchar(8) charset utf8", "char(5) collate latin1_bin",
    "text character set ucs2", "varchar(9) character set binary", "text character set binary",
    "char(3) ascii", "char(3) unicode", "varchar(5) binary",
    "enum('a','b ','it''s','x\\ny')", "set('a','b','c')",
    "enum('a','b') character set binary", "varchar(12) collate utf8mb4_bin",
]  # fmt: skip
_MARIADB = ["uuid", "inet6", "inet4", "varchar(100) compressed", "text compressed", "year(2)"]
_ATTRIBUTES = ["", "", "not null", "null", "comment 'a, ) b'", "/* c */", 'not null comment "q"']
_LATIN = "character set latin1"


class Steps:
    """Makes statements from what the tables are said to be."""

    def __init__(self, seed: int, *, is_mariadb: bool, insertable: bool = False) -> None:
        self._random = random.Random(seed)
        # Else a row cannot be written, or read, without a value for each column.
        self._attributes = [a for a in _ATTRIBUTES if not insertable or "not null" not in a]
        self._types = [*_COMMON, *(_MARIADB if is_mariadb else [])]
        self._is_mariadb = is_mariadb
        self._number = 0

    def create(self, table: str) -> str:
        """Return a statement that makes a table with a key."""
        pick = self._random
        columns = [f"{self._name()} {self._column()}" for _ in range(pick.randint(1, 6))]
        key = pick.choice(
            ["id int primary key", "id bigint not null, primary key (id)", "id serial"]
        )
        tail = pick.choice(
            [
                "",
                "charset latin1",
                "default character set = utf8mb4 comment 'x, y'",
                "collate utf8mb4_bin",
            ]
        )
        columns.insert(pick.randint(0, len(columns)), key)
        return f"create table {table} ({', '.join(columns)}) {tail}"

    def alter(self, table: str, columns: Sequence[str]) -> str:
        """Return a statement that alters a table with these columns; `id` stays."""
        others = [name for name in columns if name != "id"]
        self._random.shuffle(others)
        parts = [self._part(others, columns) for _ in range(self._random.choice([1, 1, 1, 2, 3]))]
        if any(part.startswith("convert") for part in parts):
            # Servers do not agree with themselves about these two together.
            parts = [p for p in parts if not p.startswith(("modify", "change", "default"))]
        return f"alter table {table} {', '.join(parts)}"

    def _name(self) -> str:
        self._number += 1
        return self._random.choice(
            [f"c{self._number}", f"`C {self._number}`", f"`ключ{self._number}`"]
        )

    def _column(self) -> str:
        pick = self._random
        attributes = pick.choice(
            ["", "", "not null", "null", "comment 'a, ) b'", "/* c */", 'not null comment "q"']
        )
        return f"{pick.choice(self._types)} {attributes}"

    def _place(self, columns: Sequence[str]) -> str:
        pick = self._random
        return pick.choice(["", "", " first", f" after {_quoted(pick.choice(columns))}"])

    def _part(self, others: list[str], columns: Sequence[str]) -> str:
        pick = self._random
        kind = pick.choice(
            [
                "add",
                "add",
                "add many",
                "default",
                "index",
                "rename",
                "modify",
                "change",
                "drop",
                "convert",
                "charset",
                "engine",
                "order",
                "unkey",
            ]
        )
        if kind == "add" or (not others and kind in ("rename", "modify", "change", "drop")):
            optional = pick.choice(["", "", "column ", "column if not exists "])
            if not self._is_mariadb:
                optional = optional.replace("if not exists ", "")
            return f"add {optional}{self._name()} {self._column()}{self._place(columns)}"
        if kind == "add many":
            return f"add ({self._name()} {self._column()}, {self._name()} {self._column()})"
        if kind in ("rename", "modify", "change", "drop"):
            return self._existing(kind, others.pop(), columns)
        if kind == "convert":
            return f"convert to {pick.choice(['charset utf8mb4', _LATIN, 'character set utf8'])}"
        charset = pick.choice([_LATIN, "charset = utf8mb4", "collate utf8mb3_bin"])
        return {
            "default": "alter column id drop default",
            "index": "add unique index (id), comment = 'x'",
            "charset": f"default {charset}",
            "engine": "engine = innodb row_format = dynamic",
            "order": "order by id desc",
            "unkey": "drop primary key, add primary key (id)",
        }[kind]

    def _existing(self, kind: str, name: str, columns: Sequence[str]) -> str:
        quoted = _quoted(name)
        place = self._place([c for c in columns if c != name])
        if kind == "drop":
            return f"drop column {quoted}"
        if kind == "rename":
            return f"rename column {quoted} to {self._name()}"
        new = "" if kind == "modify" else f" {self._name()}"
        return f"{kind} {quoted}{new} {self._column()}{place}"


def _quoted(name: str) -> str:
    return f"`{name}`"
