"""Rows that were not written since an ALTER: for every reader they are what the source has."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tests.bootstrap.alter_forms import (
    CHAINS,
    KEY_CHAINS,
    MADE_TO_FIT,
    MADE_TO_FIT_TO_BE_READ,
    NOT_ON_MYSQL,
    RETYPED_CHAINS,
    ROWS,
    TABLE,
    TELLABLE,
    TO_BE_READ,
    statements,
)
from tests.bootstrap.altering import Keeper, altered, same
from tests.client.spark.source.table_shop import read
from tests.mariadb_server import Database
from tests.mysql_server import PrivateMySQL
from tests.promises.running import RunningRelay, consuming, mysql_source, running, wait_until

pytest_plugins = ["tests.mariadb", "tests.mysql", "tests.both_servers"]


def make(database: Database, statements: list[str]) -> dict[str, str]:
    """Make a table for each, and return the statements by table."""
    by_table = {f"t{number}": text for number, text in enumerate(statements)}
    for name in by_table:
        database.run(f"CREATE TABLE {name} {TABLE}", f"INSERT INTO {name} VALUES {ROWS}")
    return by_table


def has_come(keeper: Keeper, source: str, m: int) -> bool:
    """Whether a consumer has the newest row."""
    return bool(keeper.rows.get(source, {}).get(1, {}).get("m") == m)


def test_rows_at_rest_are_what_the_source_has_after_every_form_of_alter(
    either_database: Database, tmp_path: Path
) -> None:
    database = either_database
    is_mysql = isinstance(database.server, PrivateMySQL)
    refused = NOT_ON_MYSQL if is_mysql else set()
    to_be_read = [one for one in (*TO_BE_READ, *MADE_TO_FIT_TO_BE_READ) if one not in refused]
    told = [one for one in TELLABLE if one not in refused]
    told += [*CHAINS, *MADE_TO_FIT, *RETYPED_CHAINS]
    by_table = make(database, [*told, *KEY_CHAINS, *to_be_read])
    names = {f"{database.name}.{name}": text for name, text in by_table.items()}
    physical = mysql_source(database, tmp_path, sources=list(names), start="latest")
    early = Keeper()
    with altered(tmp_path, physical) as pair, pair.held_by(early):
        seeded = {state.name: state.seed_scn for state in pair.store.sources()}
        for name, text in by_table.items():
            database.run(*statements(text, name))
        pair.wait_until_served()
        again = {s.name for s in pair.store.sources() if s.seed_scn != seeded[s.name]}
        keyless = {source for source, text in names.items() if text == "DROP PRIMARY KEY"}
        late = pair.late()
        wait_until(lambda: early.scn >= late.scn, "the early consumer", lambda: early.problems)
        tables = {source: pair.table(source) for source in names}
        wrong = {
            (reader, text): (list(keeper.rows[source].values()), tables[source])
            for reader, keeper in (("late", late), ("early", early))
            for source, text in names.items()
            if reader == "late" or text not in to_be_read
            if not same(list(keeper.rows[source].values()), tables[source])
        }
        assert not wrong
        for source, text in names.items():
            if text in told:
                in_table = [*tables[source], *late.rows[source].values()]
                for row in pair.logged(source, seeded[source]).values():
                    assert sum(same([row], [other]) for other in in_table) == 2, text
            options = {"mode": "table", "sources": source, "bootstrapServers": pair.url}
            if source not in keyless:
                assert same(read(options).to_pylist(), tables[source]), names[source]
        assert {names[source] for source in again} == {*to_be_read, *KEY_CHAINS}
        assert [found.source for found in pair.verify() if not found.is_same] == []


def test_null_that_an_alter_makes_a_value_is_read_again_also_in_a_strict_session(
    database: Database, tmp_path: Path
) -> None:
    alters = {
        "strict": "ALTER IGNORE TABLE strict MODIFY m BIGINT NOT NULL",
        "lax": "SET STATEMENT sql_mode = '' FOR ALTER TABLE lax MODIFY m BIGINT NOT NULL",
    }
    for name in alters:
        database.run(f"CREATE TABLE {name} {TABLE}", f"INSERT INTO {name} VALUES {ROWS}")
    sources = [f"{database.name}.{name}" for name in alters]
    physical = mysql_source(database, tmp_path, sources=sources, start="latest")
    with altered(tmp_path, physical) as pair:
        pair.wait_until_served()
        database.run(*alters.values())
        pair.wait_until_served()
        for source in sources:
            assert [row["m"] for row in pair.table(source)] == [10, 20, 0]
        assert [found.source for found in pair.verify() if not found.is_same] == []


def test_a_consumer_is_told_of_each_version_once_also_over_a_restart(
    database: Database, tmp_path: Path
) -> None:
    database.run(f"CREATE TABLE t {TABLE}", f"INSERT INTO t VALUES {ROWS}")
    source = f"{database.name}.t"
    physical = mysql_source(database, tmp_path, sources=[source], start="latest")
    with running(RunningRelay(tmp_path, physical)) as relay:
        relay.start()
        database.run("UPDATE t SET m = 1 WHERE id = 1")
        keeper, told = Keeper(), 0
        rounds: tuple[list[str], ...] = (
            ["RENAME COLUMN city TO town"],
            ["ADD vip INT NOT NULL DEFAULT 7", "MODIFY n SMALLINT NOT NULL", "ADD INDEX (n)"],
            [],
        )
        for m, statements in enumerate(rounds, 2):
            for statement in statements:
                database.run(f"ALTER TABLE t {statement}")
                told += "INDEX" not in statement
            database.run("UPDATE t SET m = m + 1 WHERE id = 1")
            options = {"checkpoint_dir": str(tmp_path / "kept"), "start": "earliest"}
            with consuming([relay.url], [source], keeper, **options):
                wait_until(partial(has_come, keeper, source, m), "all", lambda: keeper.problems)
            assert len(keeper.changes) == told
        assert [step.needs_reload for _, step in keeper.changes] == [False, False, True]
        assert keeper.rows[source][1]["town"] == "Ulm"
        assert keeper.rows[source][1]["m"] == 4
