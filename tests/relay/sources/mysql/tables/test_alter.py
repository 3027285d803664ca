"""What the parts of a CREATE or ALTER TABLE make of a definition, without a server."""

from __future__ import annotations

import pytest

from databus.relay.sources.mysql.rows.layout import (
    OWN_PERIOD,
    ROW_ID,
    DefinedColumn,
    Definition,
    Dialect,
)
from databus.relay.sources.mysql.tables.alter import (
    Changes,
    TableVersion,
    altered,
    created,
    read_alter,
    read_body,
)
from databus.relay.sources.mysql.tables.column_spec import Rules
from databus.relay.sources.mysql.tables.ddl_tokens import Reader, tokens

CHAR_BYTES = {"utf8mb4": 4, "latin1": 1, "utf8mb3": 3, "binary": 1}
RULES = Rules(Dialect(char_bytes=CHAR_BYTES), 101119)
OF_MYSQL = Rules(Dialect(is_mariadb=False, char_bytes=CHAR_BYTES), 80031)
TABLE = Definition(
    (
        DefinedColumn("Id", "int(11)", False),
        DefinedColumn("Name", "varchar(9)", True, "latin1"),
        DefinedColumn("c", "int(11)", True),
    ),
    ("Id",),
)


def parts(text: str, before: Definition | None = TABLE, rules: Rules = RULES) -> Changes:
    return read_alter(Reader(tokens(text), "d"), rules, before)


def version_after(
    text: str, before: Definition | None = TABLE, rules: Rules = RULES
) -> TableVersion:
    version = TableVersion(before, "latin1", "" if before else "never seen")
    return altered(version, parts(text, before, rules), "utf8mb4", rules)


def after(text: str, before: Definition = TABLE, rules: Rules = RULES) -> Definition:
    definition = version_after(text, before, rules).definition
    assert definition is not None
    return definition


def body(text: str, rules: Rules = RULES) -> Changes:
    changes, words = Changes(), Reader(tokens(text))
    read_body(words, rules, changes)
    assert words.is_at_end
    return changes


def made(text: str, rules: Rules = RULES, *, is_versioned: bool | None = None) -> Definition:
    changes = body(text, rules)
    changes.is_versioned = is_versioned
    definition = created(changes, "latin1", rules).definition
    assert definition is not None
    return definition


def names(definition: Definition) -> list[str]:
    return [column.name for column in definition.columns]


def not_null(definition: Definition) -> list[str]:
    return [column.name for column in definition.columns if not column.nullable]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("(a INT, b INT)", ()),
        ("(a INT PRIMARY KEY, b INT)", ("a",)),
        ("(a INT, b INT KEY)", ("b",)),
        ("(a INT, b INT, PRIMARY KEY (b, a))", ("b", "a")),
        ("(PRIMARY KEY (B, a), a INT, b INT)", ("b", "a")),
        ("(a INT, b INT, CONSTRAINT PRIMARY KEY (a))", ("a",)),
        ("(a INT, b INT, CONSTRAINT pk PRIMARY KEY (b))", ("b",)),
        ("(a INT, b INT, CONSTRAINT IF NOT EXISTS pk PRIMARY KEY (b))", ("b",)),
        ("(a INT, b CHAR(9), PRIMARY KEY pk USING BTREE (b(3) DESC, a ASC) COMMENT 'k', KEY (a))",
         ("b", "a")),
        ("(a INT, PRIMARY KEY (a) USING BTREE, b INT)", ("a",)),
        ("(a INT, b INT, UNIQUE (b), KEY i (a), INDEX (a), CONSTRAINT u UNIQUE (a, b))", ()),
        ("(a INT, b INT, FULLTEXT (b), SPATIAL KEY (a), VECTOR INDEX (b), VECTOR KEY v (b))", ()),
        ("(a INT, b INT, CHECK (a > 0), CONSTRAINT CHECK (b > 0), CONSTRAINT k CHECK (a > b))", ()),
        ("(a INT, b INT, CONSTRAINT FOREIGN KEY (a) REFERENCES x (i))", ()),
        ("(a INT, b INT, CONSTRAINT UNIQUE (a))", ()),
    ],
)  # fmt: skip
def test_the_key_of_a_new_table_is_the_one_that_it_is_given(
    text: str, key: tuple[str, ...]
) -> None:
    found = made(text)
    assert (sorted(names(found)), found.key) == (["a", "b"], key)
    assert not_null(found) == sorted(key)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(a INT, PRIMARY KEY (b))", "no column 'b', of the key"),
        ("(a INT, A INT)", "two columns would have one name"),
        ("(a INT, PRIMARY (a))", "KEY is expected"),
        ("(a INT, PRIMARY KEY (a b))", ", is expected"),
        ("(a INT b INT)", "not understood at 'B'"),
        ("a INT", r"\( is expected"),
        ("(a INT, PERIOD FOR p (a b))", ", is expected"),
        ("(a INT, PERIOD FOR p a, b)", r"\( is expected"),
        ("(a INT, PERIOD FOR p (a, b, c))", r"\) is expected"),
        ("(a INT, PRIMARY KEY (a, p WITHOUT OVERLAPS))", "columns of period 'p' are not known"),
    ],
)
def test_a_body_that_no_server_takes_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(text)


def test_a_column_may_have_the_name_of_a_word() -> None:
    assert names(made("(period INT, vector INT, c INT)")) == ["period", "vector", "c"]


@pytest.mark.parametrize("again", ["", "IF NOT EXISTS "])
def test_a_key_without_overlaps_has_the_end_and_the_start_of_its_period(again: str) -> None:
    text = (
        f"(a INT, f DATE, t DATE, PERIOD FOR {again}P (F, t), PRIMARY KEY (a, p WITHOUT OVERLAPS))"
    )
    found = made(text)
    assert (found.key, not_null(found)) == (("a", "t", "f"), ["a", "f", "t"])


CASCADES = [
    ("REFERENCES x (i) ON DELETE CASCADE", "DELETE CASCADE"),
    ("REFERENCES x (i) ON UPDATE CASCADE", "UPDATE CASCADE"),
    ("REFERENCES x (i) ON UPDATE SET NULL", "UPDATE SET NULL"),
    ("REFERENCES x (i) ON DELETE SET DEFAULT", "DELETE SET DEFAULT"),
    ("REFERENCES x (i) ON DELETE RESTRICT ON UPDATE CASCADE", "UPDATE CASCADE"),
    ("REFERENCES x (i) ON DELETE RESTRICT ON UPDATE NO ACTION", ""),
    ("REFERENCES x (i)", ""),
]


@pytest.mark.parametrize(("text", "cascade"), CASCADES)
def test_a_foreign_key_says_which_rule_changes_rows_that_are_not_logged(
    text: str, cascade: str
) -> None:
    for before in ("a INT", "a INT, FOREIGN KEY (a)", "a INT, CONSTRAINT f FOREIGN KEY g (a)"):
        assert body(f"({before} {text})").cascade == cascade
        assert body(f"({before} {text}, b INT, KEY (b))").cascade == cascade
    for part in (
        f"ADD b INT {text}",
        f"ADD FOREIGN KEY (c) {text}",
        f"ADD (b INT {text})",
        f"ADD (b INT, FOREIGN KEY (b) {text})",
        f"MODIFY c INT {text}",
        f"CHANGE c b INT {text}",
    ):
        assert parts(part).cascade == cascade
        assert parts(f"{part}, ADD e INT, ADD (f INT)").cascade == cascade


def test_the_parts_of_an_alter_that_change_no_column_alter_none() -> None:
    for text in (
        "ENGINE = InnoDB",
        "ADD INDEX (c), DROP INDEX i, RENAME INDEX a TO b, ALTER INDEX i INVISIBLE",
        "RENAME TO u, COMMENT 'x'",
        "DEFAULT CHARSET utf8mb4",
        "ALTER c SET DEFAULT 5",
        "TRUNCATE PARTITION p",
    ):
        assert not parts(text).alters_columns
        assert after(text) == TABLE


@pytest.mark.parametrize(
    "text",
    [
        "ADD d INT",
        "MODIFY c INT",
        "CHANGE c d INT",
        "RENAME COLUMN c TO d",
        "DROP c",
        "ADD PERIOD FOR p (name, c)",
        "ADD PRIMARY KEY (c)",
        "DROP PRIMARY KEY",
        "CONVERT TO CHARACTER SET utf8mb4",
        "ADD SYSTEM VERSIONING",
        "DROP SYSTEM VERSIONING",
    ],
)
def test_each_part_about_columns_or_the_key_alters_the_columns(text: str) -> None:
    assert parts(text).alters_columns


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("ADD d INT", ("Id",)),
        ("DROP PRIMARY KEY", ()),
        ("DROP PRIMARY KEY, ADD PRIMARY KEY (c)", ("c",)),
        ("ADD CONSTRAINT pk PRIMARY KEY USING BTREE (c, id), ADD d INT", ("c", "Id")),
        ("ADD d INT FIRST, ADD (e INT KEY), ADD (f INT)", ("e",)),
        ("ADD d INT KEY, ADD e INT", ("d",)),
        ("ADD (d INT, PRIMARY KEY (d, c)), ADD e INT", ("d", "c")),
        ("MODIFY c INT PRIMARY KEY", ("c",)),
        ("CHANGE c d INT KEY", ("d",)),
        ("CHANGE ID k INT", ("k",)),
        ("RENAME COLUMN ID TO k", ("k",)),
        ("DROP ID", ()),
        ("DROP INDEX a", ("Id",)),
        ("DROP KEY z", ("Id",)),
        ("DROP CONSTRAINT IF EXISTS q", ("Id",)),
        ("DROP INDEX `Primary`, DROP INDEX q", ()),
        ("DROP CONSTRAINT `PRIMARY`", ()),
        ("DROP KEY IF EXISTS `PRIMARY`", ()),
        ("DROP FOREIGN KEY f, DROP CHECK k, DROP PERIOD FOR p", ("Id",)),
    ],
)
def test_the_key_follows_an_alter(text: str, key: tuple[str, ...]) -> None:
    found = after(text)
    assert found.key == key
    assert set(not_null(found)) == {*key} | {"Id"} & set(names(found))


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("ADD COLUMN d INT", ["Id", "Name", "c", "d"]),
        ("ADD d INT AFTER NAME, ADD e INT FIRST", ["e", "Id", "Name", "d", "c"]),
        ("ADD d INT FIRST, ADD e INT FIRST", ["e", "d", "Id", "Name", "c"]),
        ("ADD COLUMN (d INT, e INT), ADD f INT", ["Id", "Name", "c", "d", "e", "f"]),
        ("ADD COLUMN IF NOT EXISTS (C INT, d INT)", ["Id", "Name", "c", "d"]),
        ("ADD COLUMN IF NOT EXISTS d INT", ["Id", "Name", "c", "d"]),
        ("ADD PARTITION (PARTITION p VALUES LESS THAN (5))", ["Id", "Name", "c"]),
        ("DROP COLUMN name RESTRICT, DROP c", ["Id"]),
        ("DROP COLUMN IF EXISTS NAME", ["Id", "c"]),
        ("DROP COLUMN IF EXISTS z", ["Id", "Name", "c"]),
        ("MODIFY COLUMN c INT FIRST", ["c", "Id", "Name"]),
        ("MODIFY COLUMN IF EXISTS c INT FIRST", ["c", "Id", "Name"]),
        ("MODIFY IF EXISTS z INT FIRST", ["Id", "Name", "c"]),
        ("MODIFY id INT AFTER c", ["Name", "c", "id"]),
        ("MODIFY c INT AFTER id, MODIFY name TEXT AFTER c", ["Id", "c", "name"]),
        ("CHANGE COLUMN C d INT AFTER id, ADD e INT AFTER d", ["Id", "d", "e", "Name"]),
        ("CHANGE COLUMN IF EXISTS c d INT", ["Id", "Name", "d"]),
        ("CHANGE IF EXISTS z d INT FIRST", ["Id", "Name", "c"]),
        ("CHANGE c name INT, CHANGE name c TEXT", ["Id", "c", "name"]),
        ("DROP c, ADD c TEXT FIRST", ["c", "Id", "Name"]),
        ("DROP c, CHANGE name c INT", ["Id", "c"]),
        ("RENAME COLUMN NAME TO label, RENAME KEY a TO b", ["Id", "label", "c"]),
        ("RENAME COLUMN IF EXISTS name TO label", ["Id", "label", "c"]),
        ("RENAME COLUMN IF EXISTS z TO label", ["Id", "Name", "c"]),
        ("ORDER BY c, name DESC, ADD d INT", ["Id", "Name", "c", "d"]),
        ("ADD d INT FIRST, MODIFY d BIGINT", ["Id", "Name", "c", "d"]),
        ("ADD d INT, MODIFY D BIGINT FIRST", ["D", "Id", "Name", "c"]),
        ("ADD d INT, MODIFY IF EXISTS d BIGINT FIRST", ["Id", "Name", "c", "d"]),
        ("ADD e INT, CHANGE d e BIGINT", ["Id", "Name", "c", "e"]),
        ("DROP c, ADD c INT FIRST, MODIFY c BIGINT", ["Id", "Name", "c"]),
        ("DROP c, ADD d DATE, CHANGE c d BIGINT", ["Id", "Name", "d"]),
        ("ADD d INT, ADD e INT AFTER d, MODIFY d BIGINT", ["Id", "Name", "c", "e", "d"]),
        ("ADD d INT, MODIFY d BIGINT, MODIFY d TINYINT, ADD e INT", ["Id", "Name", "c", "d", "e"]),
    ],
)
def test_columns_come_where_an_alter_puts_them(text: str, columns: list[str]) -> None:
    assert names(after(text)) == columns


@pytest.mark.parametrize(
    "text",
    [
        "ADD d DATE, MODIFY d BIGINT",
        "DROP c, ADD c DATE, MODIFY c BIGINT",
        "DROP c, ADD d DATE, CHANGE c d BIGINT",
        "ADD d DATE AS (CURDATE()) VIRTUAL, MODIFY d INT, MODIFY d BIGINT",
    ],
)
def test_a_new_column_that_the_same_statement_modifies_is_what_that_says(text: str) -> None:
    assert after(text).columns[-1].sql_type == "bigint(20)"
    changes = parts(text)
    assert ([spec.kind for spec in changes.columns], changes.generated) == (["bigint"], set())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FROB c", "not understood at 'FROB c'"),
        ("ADD d INT, c", "not understood at 'c'"),
        ("FORCE, c", "not understood at 'c'"),
        ("ORDER BY c, ADD d INT, name", "not understood at 'name'"),
        ("DROP z", "no column 'z' in the definition"),
        ("DROP z, DROP y", "no column 'y' in the definition"),
        ("MODIFY z INT", "no column 'z' in the definition"),
        ("CHANGE z d INT", "no column 'z' in the definition"),
        ("RENAME COLUMN z TO d", "no column 'z' in the definition"),
        ("RENAME COLUMN c d", "TO is expected"),
        ("ADD C INT", "two columns would have one name"),
        ("RENAME COLUMN c TO name", "two columns would have one name"),
        ("ADD d INT AFTER z", "no column 'z' to put 'd' after"),
        ("ADD PRIMARY KEY (z)", "no column 'z', of the key"),
        ("CHARSET latin1, CONVERT TO CHARSET utf8mb4", "two character sets in one statement"),
        ("CONVERT TO CHARACTER utf8mb4", "SET is expected"),
        ("CONVERT CHARSET utf8mb4", "TO is expected"),
        ("CONVERT TO CHARSET utf8mb4, MODIFY c TEXT", "which size column 'c' has now"),
        ("CONVERT TO CHARSET utf8mb4, CHANGE c e LONGBLOB", "which size column 'e' has now"),
    ],
)
def test_an_alter_that_does_not_fit_the_table_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        after(text)


def charsets_after(text: str) -> tuple[str, list[str | None]]:
    version = version_after(text)
    assert version.definition is not None
    return version.charset, [column.charset for column in version.definition.columns]


@pytest.mark.parametrize(
    ("text", "of_table", "of_columns"),
    [
        ("ENGINE = InnoDB", "latin1", [None, "latin1", None]),
        ("ADD d CHAR(3)", "latin1", [None, "latin1", None, "latin1"]),
        ("ADD d CHAR(3), CHARSET utf8mb3", "utf8mb3", [None, "latin1", None, "utf8mb3"]),
        ("CHARSET utf8mb3, COLLATE utf8mb3_bin", "utf8mb3", [None, "latin1", None]),
        ("CHARSET DEFAULT", "utf8mb4", [None, "latin1", None]),
        ("CONVERT TO CHARSET utf8mb3", "utf8mb3", [None, "utf8mb3", None]),
        ("CONVERT TO CHAR SET utf8mb3 COLLATE utf8mb3_bin", "utf8mb3", [None, "utf8mb3", None]),
        ("CONVERT TO CHARSET utf8mb3 COLLATE DEFAULT", "utf8mb3", [None, "utf8mb3", None]),
        ("CONVERT TO CHARACTER SET DEFAULT", "utf8mb4", [None, "utf8mb4", None]),
        ("CONVERT TO CHARSET utf8mb3, ADD d CHAR CHARSET latin1, ADD e BINARY",
         "utf8mb3", [None, "utf8mb3", None, "utf8mb3", None]),
        ("CONVERT TO CHARSET utf8mb3, MODIFY name CHAR(9) CHARSET latin1, ADD e CHAR(1) BYTE",
         "utf8mb3", [None, "utf8mb3", None, None]),
        ("MODIFY name CHAR(9) CHARSET utf8mb4", "latin1", [None, "utf8mb4", None]),
    ],
)  # fmt: skip
def test_an_alter_says_the_character_sets_of_the_table_and_of_its_columns(
    text: str, of_table: str, of_columns: list[str | None]
) -> None:
    assert charsets_after(text) == (of_table, of_columns)


def test_a_table_of_unknown_columns_stays_so_and_keeps_its_character_set_and_problem() -> None:
    expected = TableVersion(None, "utf8mb3", "never seen")
    assert version_after("ADD d INT, CHARSET utf8mb3", before=None) == expected
    assert version_after("DROP IF EXISTS c, DROP q", before=None).problem == "never seen"


@pytest.mark.parametrize("word", ["", "TO", "AS", "="])
def test_a_new_name_is_read_with_its_database(word: str) -> None:
    assert parts(f"RENAME {word} u").new_name == ("d", "u")
    assert parts(f"RENAME {word} e.u, ADD d INT").new_name == ("e", "u")


@pytest.mark.parametrize(
    ("text", "lost", "others", "makes"),
    [
        ("DROP PARTITION p, ADD d INT", "DROP PARTITION", [], None),
        ("TRUNCATE PARTITION p", "TRUNCATE PARTITION p", [], None),
        ("DISCARD TABLESPACE", "DISCARD TABLESPACE", [], None),
        ("IMPORT PARTITION p TABLESPACE", "IMPORT PARTITION p TABLESPACE", [], None),
        ("EXCHANGE PARTITION a_long_one WITH TABLE e.x WITHOUT VALIDATION",
         "EXCHANGE PARTITION a_long_one WITH TABLE", [("e", "x")], None),
        ("CONVERT PARTITION p TO TABLE y", "CONVERT PARTITION", [("d", "y")], ("d", "y")),
        ("CONVERT TABLE x TO PARTITION p VALUES LESS THAN (5)", "CONVERT TABLE", [("d", "x")],
         None),
        ("CONVERT TABLE x TO PARTITION p VALUES LESS THAN (5), ADD d INT", "CONVERT TABLE",
         [("d", "x")], None),
    ],
)  # fmt: skip
def test_what_is_done_to_rows_in_partitions_is_lost_and_whose_they_are_is_known(
    text: str, lost: str, others: list[tuple[str, str]], makes: tuple[str, str] | None
) -> None:
    found = parts(text)
    assert found.lost == f"ALTER TABLE … {lost}"
    assert (found.other_tables, found.made_table) == (others, makes)


def test_what_is_lost_is_said_in_forty_characters() -> None:
    text = "TRUNCATE PARTITION " + "p" * 60
    assert parts(text).lost == f"ALTER TABLE … {text[:40]}"


def test_only_a_column_is_made_visible_or_invisible() -> None:
    text = (
        "ALTER C SET INVISIBLE, ALTER COLUMN IF EXISTS id SET VISIBLE, ALTER name SET DEFAULT 'x'"
    )
    assert parts(text).visible == {"c": False, "id": True}
    for kind in ("INDEX i INVISIBLE", "CHECK k NOT ENFORCED", "CONSTRAINT k NOT ENFORCED"):
        assert parts(f"ALTER {kind}, ADD d INT").visible == {}


@pytest.mark.parametrize(
    ("text", "columns", "nullable"),
    [
        ("ADD PERIOD FOR P (Name, C)", {"p": ("Name", "C")}, []),
        ("ADD (f DATE, PERIOD FOR p (f, c)), ADD PERIOD FOR q (c, id)",
         {"p": ("f", "c"), "q": ("c", "id")}, ["Name"]),
    ],
)  # fmt: skip
def test_the_columns_of_a_new_period_are_known_and_not_null(
    text: str, columns: dict[str, tuple[str, str]], nullable: list[str]
) -> None:
    assert parts(text).periods == columns
    assert [column.name for column in after(text).columns if column.nullable] == nullable


OF_ITS_OWN = "s TIMESTAMP(6) AS ROW START, e TIMESTAMP(6) AS ROW END, PERIOD FOR SYSTEM_TIME (s, e)"


def test_the_period_of_a_versioned_table_is_its_own_or_the_servers() -> None:
    assert made("(a INT)").period is None
    assert made("(a INT)", is_versioned=False).period is None
    assert made("(a INT)", is_versioned=True).period == OWN_PERIOD
    found = made(f"(a INT, {OF_ITS_OWN}, PRIMARY KEY (a, e))", is_versioned=True)
    assert (found.period, found.key, not_null(found)) == (("s", "e"), ("a",), ["a", "s", "e"])
    half = made("(a INT, s TIMESTAMP(6) AS ROW START)", is_versioned=True)
    assert half.period == OWN_PERIOD


def test_a_period_stays_until_the_versioning_is_dropped() -> None:
    versioned = after("ADD SYSTEM VERSIONING")
    assert versioned.period == OWN_PERIOD
    assert after("ADD d INT", versioned).period == OWN_PERIOD
    assert after("DROP SYSTEM VERSIONING, ADD d INT", versioned) == after("ADD d INT")
    assert after(f"ADD ({OF_ITS_OWN}), ADD SYSTEM VERSIONING").period == ("s", "e")


MADE = f"({ROW_ID} BIGINT UNSIGNED NOT NULL AUTO_INCREMENT INVISIBLE PRIMARY KEY, a INT)"


def test_a_key_that_mysql_generated_stays_in_front_while_it_is_invisible() -> None:
    table = made(MADE, OF_MYSQL)
    assert table.hides_row_id
    assert names(after("ADD d INT FIRST", table, OF_MYSQL)) == [ROW_ID, "d", "a"]
    shown = after(f"ALTER {ROW_ID} SET VISIBLE", table, OF_MYSQL)
    assert not shown.hides_row_id
    assert names(after("ADD d INT FIRST", shown, OF_MYSQL)) == ["d", ROW_ID, "a"]
    hidden = after(f"ALTER {ROW_ID} SET INVISIBLE, ADD d INT FIRST", shown, OF_MYSQL)
    assert (names(hidden), hidden.hides_row_id) == (["d", ROW_ID, "a"], True)


def test_whether_the_row_id_is_invisible_is_what_was_said_of_it_last() -> None:
    table = made(MADE, OF_MYSQL)
    assert after("ADD d INT", table, OF_MYSQL).hides_row_id
    column = f"{ROW_ID} BIGINT UNSIGNED NOT NULL AUTO_INCREMENT"
    shown = after(f"MODIFY {column}", table, OF_MYSQL)
    assert not shown.hides_row_id
    assert not after("ADD d INT", shown, OF_MYSQL).hides_row_id
    assert after(f"MODIFY {column} INVISIBLE", shown, OF_MYSQL).hides_row_id
    assert after(f"ADD {column} INVISIBLE", TABLE, OF_MYSQL).hides_row_id
    assert not after(f"RENAME COLUMN {ROW_ID} TO b", table, OF_MYSQL).hides_row_id
    assert not made(MADE.replace("INVISIBLE", ""), OF_MYSQL).hides_row_id
    assert not made(MADE).hides_row_id  # MariaDB knows no such key
