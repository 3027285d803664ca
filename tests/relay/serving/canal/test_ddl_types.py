"""The event types of DDL statements."""

from __future__ import annotations

import pytest

from databus.relay.serving.canal.ddl_types import ddl_event_type, renamed_to


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("CREATE TABLE t (id INT)", "CREATE"),
        ("/* why */ create temporary table t (id int)", "CREATE"),
        ("/*!40000 CREATE TABLE t (id INT) */", "CREATE"),
        ("CREATE UNIQUE INDEX i ON t (a)", "CINDEX"),
        ("CREATE FULLTEXT INDEX i ON t (a)", "CINDEX"),
        ("DROP INDEX i ON t", "DINDEX"),
        ("-- note\nDROP TABLE IF EXISTS t, u", "ERASE"),
        ("TRUNCATE t", "TRUNCATE"),
        ("RENAME TABLE a TO b", "RENAME"),
        ("ALTER TABLE a RENAME TO b", "RENAME"),
        ("ALTER TABLE a RENAME b", "RENAME"),
        ("ALTER TABLE a RENAME COLUMN b TO c", "ALTER"),
        ("ALTER TABLE a ADD COLUMN b INT", "ALTER"),
        ("ALTER TABLE a ADD UNIQUE KEY k (b)", "CINDEX"),
        ("ALTER TABLE a DROP KEY k", "DINDEX"),
        ("CREATE DATABASE d", "QUERY"),
        ("GRANT ALL ON *.* TO u", "QUERY"),
        ("", "QUERY"),
    ],
)
def test_a_statement_has_the_type_of_what_it_does(statement: str, name: str) -> None:
    assert ddl_event_type(statement).name == name


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("RENAME TABLE a TO b", "shop.b"),
        ("RENAME TABLE `shop`.`a` TO `other`.`b``c`, x TO y", "other.b`c"),
        ("ALTER TABLE a ADD x INT, RENAME TO s.b", "s.b"),
        ("ALTER TABLE a RENAME b", "shop.b"),
        ("ALTER TABLE a RENAME COLUMN b TO c", None),
        ("ALTER TABLE a ADD renamed INT", None),
        ("DROP TABLE a", None),
    ],
)
def test_a_new_name_is_the_first_tables(statement: str, name: str | None) -> None:
    assert renamed_to(statement, "shop") == name
