"""Definitions over time: their file, what a crash leaves of it, and repairing it by hand."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from databus.cli.main import main
from databus.relay.sources.mysql.rows.layout import DefinedColumn, Definition
from databus.relay.sources.mysql.tables.alter import TableVersion
from databus.relay.sources.mysql.tables.history import History, Record
from databus.schemas.errors import SourceStoppedError
from tests.mariadb_server import Database
from tests.relay.sources.mysql.reading import read_changes, watching
from tests.relay.sources.read_back import ReadSource

pytest_plugins = ["tests.mariadb"]

T, U = ("d", "t"), ("d", "u")


def version(*columns: str) -> TableVersion:
    found = tuple(DefinedColumn(name, "varchar(9)", True, "latin1") for name in columns)
    return TableVersion(Definition(found, columns[:1]), "latin1")


def history_of(path: Path | None = None) -> History:
    history = History(path)
    history.begin(Record(10, {T: version("a")}, {"d": "latin1"}, is_beginning=True))
    history.add(Record(20, {T: version("a", "b"), U: version("x")}))
    history.add(Record(30, {T: None, U: TableVersion(None, problem="nobody saw it")}))
    history.add(Record(40, {T: version("ñ")}, {"d": "utf8mb4"}))
    return history


def seen(history: History, scn: int) -> tuple[object, ...]:
    return history.table(T, scn), history.table(U, scn), history.charset("d", scn)


def test_every_scn_has_its_definitions() -> None:
    history = history_of()
    unknown = TableVersion(None, problem="nobody saw it")
    assert [seen(history, scn) for scn in (9, 10, 19, 20, 30, 45)] == [
        (None, None, None),
        (version("a"), None, "latin1"),
        (version("a"), None, "latin1"),
        (version("a", "b"), version("x"), "latin1"),
        (None, unknown, "latin1"),
        (version("ñ"), unknown, "utf8mb4"),
    ]
    assert [history.stretch(scn) for scn in (5, 10, 25, 40)] == [
        (0, 10), (10, 20), (20, 30), (40, 1 << 63),
    ]  # fmt: skip


def test_a_file_has_the_same_definitions_when_it_is_read_again(tmp_path: Path) -> None:
    first, again = history_of(tmp_path / "h"), History(tmp_path / "h")
    for scn in range(60):
        assert seen(first, scn) == seen(again, scn)


def test_a_line_that_was_being_written_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "h"
    whole = history_of(path)
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    for cut in range(len(data) - len(lines[-1]), len(data)):
        path.write_bytes(data[:cut])
        history = History(path)
        assert seen(history, 39) == seen(whole, 39)
        assert not history.has_record(40)
        history.add(Record(40, {T: version("ñ")}, {"d": "utf8mb4"}))
        assert seen(History(path), 50) == seen(whole, 50)


def test_a_damaged_file_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "h"
    history_of(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"h is damaged in line \d"):
        History(path)


def test_a_last_line_whose_end_is_damaged_is_not_taken_for_one_that_was_being_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "h"
    whole = history_of(path)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"K")
    assert seen(History(path), 50) == seen(whole, 50)
    assert path.read_bytes() == data
    assert "it is mended" in caplog.text


def test_what_can_no_longer_be_read_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "h"
    history, whole = history_of(path), history_of()
    history.forget_before(35)
    assert path.read_bytes().count(b"\n") == 2
    for kept in (history, History(path)):
        assert [seen(kept, scn) for scn in (35, 40)] == [seen(whole, scn) for scn in (35, 40)]


def test_it_reaches_back_to_where_tables_were_altered_last(tmp_path: Path) -> None:
    history = history_of(tmp_path / "h")
    history.reach_back(3, {T: 7, ("d", ""): 5})
    for found in (history, History(tmp_path / "h")):
        before = found.table(T, 3)
        assert before is not None
        assert (before.definition, "scn 7" in before.problem) == (None, True)
        assert found.table(T, 7) == version("a")
        assert [found.charset("d", scn) for scn in (3, 5, 12)] == [None, "latin1", "latin1"]
        assert seen(found, 40) == seen(history_of(), 40)


def repair(*words: str | Path, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, ["schema", "repair", *map(str, words)], input=stdin)


def write_config(database: Database, folder: Path) -> Path:
    """Write the settings of a relay that captures table `t`."""
    config = folder / "relay.toml"
    config.write_text(
        f'data_dir = "{folder}"\n[[physical_sources]]\nname = "shop"\n'
        f'uri = "{database.server.uri}"\npassword_file = "{folder}/password"\n'
        f'sources = ["{database.name}.t"]\n'
    )
    return config


THEN = "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)"


@pytest.mark.mariadb
def test_a_table_that_is_known_to_be_altered_later_is_repaired_from_a_create_table_alone(
    database: Database, tmp_path: Path
) -> None:
    database.run(THEN)
    source_name, settings = f"{database.name}.t", watching(database, tmp_path, "t")
    config, history = write_config(database, tmp_path), tmp_path / "shop.history"
    with closing(ReadSource(settings)) as source:
        source.open(None)
        begin = source.read_transactions()[-1].scn
    database.run(
        "INSERT INTO t VALUES (7, 1, 2)",
        "ALTER TABLE t DROP COLUMN a",
        "ALTER TABLE t ADD COLUMN c INT",
    )
    with closing(ReadSource(settings, history=history)) as source:
        source.open(None)
        source.read_transactions()
    with closing(ReadSource(settings, history=history)) as source:
        source.open(begin)
        with pytest.raises(SourceStoppedError, match="was altered later") as caught:
            read_changes(source, 1)
    message = str(caught.value)
    scn = message.split("--scn ")[1].split()[0]
    assert " --create-table FILE` (FILE has its CREATE TABLE statement as of scn" in message
    assert "binlog_row_metadata" not in message
    before = history.read_bytes()
    refused = repair(source_name, "-c", config, "--scn", scn)
    assert refused.exit_code != 0
    assert f"{source_name} was altered later, at scn " in refused.output
    assert "give --create-table FILE" in refused.output
    assert history.read_bytes() == before
    assert repair(source_name, "-c", config, "--scn", scn, "--create-table", "-", stdin=THEN)
    with closing(ReadSource(settings, history=history)) as source:
        source.open(begin)
        assert read_changes(source, 1)[0].row == {"id": 7, "a": 1, "b": 2}


@pytest.mark.mariadb
def test_the_log_is_asked_whether_a_table_that_is_repaired_was_altered_since(
    database: Database, tmp_path: Path
) -> None:
    database.run(THEN)
    source_name, settings = f"{database.name}.t", watching(database, tmp_path, "t")
    config, history = write_config(database, tmp_path), tmp_path / "shop.history"
    with closing(ReadSource(settings, history=history)) as source:
        source.open(None)
        begin = str(source.read_transactions()[-1].scn)
    found = repair(source_name, "-c", config, "--scn", begin)
    assert "the log has no statement after" in found.output
    database.run("ALTER TABLE t DROP COLUMN a")
    refused = repair(source_name, "-c", config, "--scn", begin)
    assert refused.exit_code != 0
    assert f"{source_name} was altered later, at scn " in refused.output
    elsewhere = int(begin) + (50 << 32)  # in a file that the server does not have
    unknown = repair(source_name, "-c", config, "--scn", str(elsewhere))
    assert "only if the table was not altered since" in unknown.output
    assert "is not in the server's log" in unknown.output


@pytest.mark.mariadb
def test_a_definition_that_nobody_could_follow_is_given_by_hand(
    database: Database, tmp_path: Path
) -> None:
    database.run("CREATE TABLE t (id INT PRIMARY KEY, a INT)")
    source_name = f"{database.name}.t"
    settings = watching(database, tmp_path, "t")
    config = write_config(database, tmp_path)
    history = tmp_path / "shop.history"
    assert "no history" in repair(source_name, "-c", config, "--scn", "1").output
    with closing(ReadSource(settings, history=history)) as source:
        source.open(None)
        begin = source.read_transactions()[-1].scn
    # A change that is not in the log.
    database.run("SET sql_log_bin = 0", "ALTER TABLE t ADD COLUMN b INT AFTER id")
    database.run("SET sql_log_bin = 1", "INSERT INTO t VALUES (1, 2, 3)")
    with closing(ReadSource(settings, history=history)) as source:
        source.open(begin)
        with pytest.raises(SourceStoppedError, match="has 3 columns and the database 2") as caught:
            read_changes(source, 1)
    scn = str(caught.value).split("--scn ")[1].split()[0]
    result = repair(source_name, "-c", config, "--scn", scn)
    is_now, doubt = result.output.splitlines()
    assert is_now == f"{source_name}, from scn {scn} on: id int(11), b int(11), a int(11)"
    assert "from the database as it is now; the log has no statement after" in doubt
    with closing(ReadSource(settings, history=history)) as source:
        source.open(begin)
        assert read_changes(source, 1)[0].row == {"id": 1, "b": 2, "a": 3}
    text = "CREATE TABLE t (id INTEGER PRIMARY KEY, x INT, y INT UNSIGNED)"
    assert (
        "y int(10) unsigned"
        in repair(source_name, "-c", config, "--scn", scn, "--create-table", "-", stdin=text).output
    )
    with closing(ReadSource(settings, history=history)) as source:
        source.open(begin)
        assert read_changes(source, 1)[0].row == {"id": 1, "x": 2, "y": 3}
    wrong = repair(source_name, "-c", config, "--scn", scn, "--create-table", "-", stdin="DROP x")
    assert "is no CREATE TABLE statement" in wrong.output


@pytest.mark.mariadb
def test_a_table_that_is_gone_at_a_start_is_fine_when_it_was_known(
    database: Database, tmp_path: Path
) -> None:
    database.run("CREATE TABLE t (id INT PRIMARY KEY)", "CREATE TABLE u (id INT PRIMARY KEY)")
    settings = watching(database, tmp_path, "t", "u")
    history = tmp_path / "shop.history"
    with closing(ReadSource(settings, history=history)) as source:
        source.open(None)
        begin = source.read_transactions()[-1].scn
    database.run("INSERT INTO t VALUES (1)", "DROP TABLE t", "INSERT INTO u VALUES (2)")
    with closing(ReadSource(settings, history=history)) as source:
        source.open(begin)
        assert [change.row["id"] for change in read_changes(source, 2)] == [1, 2]
    with (
        closing(ReadSource(settings, history=tmp_path / "other")) as source,
        pytest.raises(SourceStoppedError, match="does not exist"),
    ):
        source.open(None)


def test_a_beginning_is_a_start_until_the_history_reaches_further_back(tmp_path: Path) -> None:
    path = tmp_path / "history"
    history = History(path)
    beginning = Record(10, {T: version("a")}, {"d": "latin1"}, is_beginning=True, is_start=True)
    history.begin(beginning)
    history.add(Record(12, {T: version("b")}))
    assert [one.start_scn for one in (history, History(path))] == [10, 10]
    history.reach_back(7, {})  # inside an event: nobody could read from there
    for one in (history, History(path)):
        assert (one.begin_scn, one.start_scn) == (7, None)
    history.begin(replace(beginning, is_start=False))
    assert (History(path).begin_scn, History(path).start_scn) == (10, None)
