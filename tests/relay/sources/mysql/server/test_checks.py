"""What is refused at start, and in which words: variables, tables, accounts, TLS, clashes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from databus.conf.settings import PhysicalSourceSettings
from databus.demo.private_mariadb import PrivateMariaDB
from databus.relay.sources.mysql.server.checks import variable_problems
from databus.relay.sources.mysql.server.connection import address_of
from databus.relay.sources.mysql.server.replica import CLASH_GRACE_S
from databus.schemas.errors import (
    DatabusError,
    SettingsError,
    SourceStoppedError,
    SourceUnavailableError,
)
from tests.mariadb_server import Database, connect
from tests.relay.sources.certificates import write_certificates
from tests.relay.sources.mysql.reading import (
    opened,
    read_changes,
    read_full,
    settings_for,
    watching,
)
from tests.relay.sources.read_back import ReadSource

pytest_plugins = ["tests.mariadb"]
pytestmark = pytest.mark.mariadb


@pytest.fixture
def table(database: Database) -> Database:
    """A database with one table `t`."""
    database.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    return database


def refusal(settings: PhysicalSourceSettings, *, of_login: bool = False) -> str:
    """Return why a source does not open; a login that is refused is tried again."""
    with pytest.raises(DatabusError) as caught, opened(settings):
        pass
    kinds = SourceUnavailableError if of_login else (SourceStoppedError, SettingsError)
    assert isinstance(caught.value, kinds)
    return str(caught.value)


@pytest.mark.parametrize(
    ("variable", "bad", "good"),
    [
        ("binlog_format", "STATEMENT", "ROW"),
        ("binlog_format", "MIXED", "ROW"),
        ("binlog_row_image", "MINIMAL", "FULL"),
        ("binlog_row_image", "NOBLOB", "FULL"),
    ],
)
def test_a_variable_that_is_wrong_is_named_with_what_to_set(
    table: Database, tmp_path: Path, variable: str, bad: str, good: str
) -> None:
    table.run(f"SET GLOBAL {variable} = {bad}")
    try:
        text = refusal(watching(table, tmp_path, "t"))
    finally:
        table.run(f"SET GLOBAL {variable} = {good}")
    assert f"{variable} is {bad}, and must be {good}: SET GLOBAL {variable} =" in text


def test_variables_of_mysql_are_checked_too() -> None:
    good = {"log_bin": "ON", "binlog_format": "ROW", "binlog_row_image": "FULL"}
    assert variable_problems(good) == []
    fine = {"binlog_transaction_compression": "ON", "binlog_row_value_options": "PARTIAL_JSON"}
    assert variable_problems({**good, **fine}) == []
    assert len(variable_problems({**good, "binlog_row_image": "MINIMAL"})) == 1


def test_a_server_without_a_binlog_is_refused(tmp_path: Path) -> None:
    with PrivateMariaDB(options={"skip-log-bin": "ON"}) as server:
        assert "log_bin is OFF" in refusal(settings_for(server, tmp_path, ["d.t"]))


def test_a_table_that_is_missing_or_no_table_is_refused(table: Database, tmp_path: Path) -> None:
    table.run(
        "CREATE VIEW w AS SELECT * FROM t",
        "CREATE SEQUENCE s",
        "CREATE TABLE h (id INT PRIMARY KEY, s BIGINT UNSIGNED GENERATED ALWAYS AS ROW START,"
        " e BIGINT UNSIGNED GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME (s, e))"
        " WITH SYSTEM VERSIONING",
    )
    text = refusal(watching(table, tmp_path, "t", "gone", "w", "s", "h"))
    assert f"table {table.name}.gone does not exist" in text
    assert "w is a view" in text
    assert "s is a sequence" in text
    assert "h is system-versioned" in text


def test_a_cascade_that_the_log_does_not_show_is_refused_unless_allowed(
    table: Database, tmp_path: Path
) -> None:
    table.run(
        "CREATE TABLE c (id INT PRIMARY KEY, p INT, CONSTRAINT pay FOREIGN KEY (p)"
        " REFERENCES t (id) ON DELETE CASCADE ON UPDATE RESTRICT)"
    )
    settings = watching(table, tmp_path, "c")
    text = refusal(settings)
    assert "foreign key pay" in text
    assert "ON DELETE CASCADE" in text
    with opened(settings.model_copy(update={"allow_cascades": True})) as source:
        table.run("INSERT INTO t VALUES (1, 1)", "INSERT INTO c VALUES (5, 1)")
        assert read_changes(source, 1)[0].row["id"] == 5


@pytest.mark.parametrize(
    ("alter", "says"),
    [
        (
            "ADD CONSTRAINT later FOREIGN KEY (v) REFERENCES other (id) ON DELETE SET NULL",
            "a foreign key of .* is ON DELETE SET NULL",
        ),
    ],
)
def test_what_is_refused_at_start_stops_when_it_comes_later(
    table: Database, tmp_path: Path, alter: str, says: str
) -> None:
    table.run("CREATE TABLE other (id INT PRIMARY KEY)", "INSERT INTO other VALUES (1)")
    with opened(watching(table, tmp_path, "t")) as source:
        table.run("INSERT INTO t VALUES (1, 1)", f"ALTER TABLE t {alter}")
        assert read_changes(source, 1)[0].row["id"] == 1
        with pytest.raises(SourceStoppedError, match=says):
            read_full(source, 1)


def test_a_wrong_password_is_waited_for_and_is_not_repeated_in_the_text(
    table: Database, tmp_path: Path
) -> None:
    settings = watching(table, tmp_path, "t")
    assert settings.password_file is not None
    settings.password_file.write_text("not-the-pass-word")
    text = refusal(settings, of_login=True)
    assert "Access denied for user 'databus'" in text
    assert "password_file" in text
    assert "not-the-pass-word" not in text


@pytest.mark.parametrize(
    ("grants", "says"),
    [
        ("SELECT", "BINLOG MONITOR"),
        ("SELECT, REPLICATION CLIENT", "REPLICATION SLAVE"),
        ("REPLICATION SLAVE, REPLICATION CLIENT", "may not see it"),
    ],
)
def test_an_account_without_a_grant_is_told_which(
    table: Database, tmp_path: Path, grants: str, says: str
) -> None:
    user = f"poor_{table.name}"
    table.run(f"CREATE USER {user} IDENTIFIED BY 'p'", f"GRANT {grants} ON *.* TO {user}")
    try:
        settings = watching(
            table, tmp_path, "t", uri=f"mysql://{user}@127.0.0.1:{table.server.port}"
        )
        assert settings.password_file is not None
        settings.password_file.write_text("p\n")
        text = refusal(settings)
    finally:
        table.run(f"DROP USER {user}")
    assert says in text
    assert "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.*" in text


def test_an_account_with_just_those_grants_is_enough(table: Database, tmp_path: Path) -> None:
    user = f"just_{table.name}"
    table.run(
        f"CREATE USER {user} IDENTIFIED BY 'p'",
        f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {user}",
        f"GRANT SELECT ON {table.name}.t TO {user}",
    )
    settings = watching(table, tmp_path, "t", uri=f"mysql://{user}@127.0.0.1:{table.server.port}")
    assert settings.password_file is not None
    settings.password_file.write_text("p\n")
    try:
        with opened(settings) as source:
            table.run("INSERT INTO t VALUES (1, 1)")
            assert read_changes(source, 1)[0].row["id"] == 1
    finally:
        table.run(f"DROP USER {user}")


def test_a_server_that_is_not_there_is_worth_another_try(tmp_path: Path) -> None:
    settings = PhysicalSourceSettings(name="x", uri="mysql://u@127.0.0.1:1", sources=("d.t",))
    with pytest.raises(SourceUnavailableError, match="connect"), opened(settings):
        pass


@pytest.mark.parametrize(
    "uri",
    [
        "mysql://h:3306",
        "mysql://u@",
        "mysql://u@h:99999",
        "mysql://u@h/shop",
        "mysql://u@h?ssl=1",
        "postgres://u@h",
    ],
)
def test_a_uri_that_is_wrong_is_refused_without_its_password(uri: str) -> None:
    settings = PhysicalSourceSettings(name="x", uri=uri, sources=("d.t",))
    with pytest.raises(SettingsError, match="physical source x: uri") as caught:
        address_of(settings)
    assert "hidden" not in str(caught.value)


def test_the_password_comes_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def address(**more: Any) -> Any:
        return address_of(
            PhysicalSourceSettings(name="x", uri="mysql://u%40x@[::1]", sources=("d.t",), **more)
        )

    (tmp_path / "p").write_text("s3cret\nmore\n")
    monkeypatch.setenv("DATABUS_TEST_PASSWORD", "from env")
    found = address(password_file=tmp_path / "p")
    assert (found.user, found.host, found.port, found.password) == ("u@x", "::1", 3306, "s3cret")
    assert "s3cret" not in f"{found!r} {found}"
    assert address(password_env="DATABUS_TEST_PASSWORD").password == "from env"
    with pytest.raises(SettingsError, match="DATABUS_NOT_SET is not set"):
        address(password_env="DATABUS_NOT_SET")
    with pytest.raises(SettingsError, match="No such file"):
        address(password_file=tmp_path / "missing")


@pytest.fixture(scope="module")
def tls_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates, made once."""
    folder = tmp_path_factory.mktemp("tls")
    write_certificates(folder)
    return folder


@pytest.fixture(scope="module")
def tls_server(tls_folder: Path) -> Iterator[PrivateMariaDB]:
    """A server that speaks TLS only."""
    options = {
        "ssl-ca": str(tls_folder / "ca.pem"),
        "ssl-cert": str(tls_folder / "cert.pem"),
        "ssl-key": str(tls_folder / "key.pem"),
        "require-secure-transport": "ON",
    }
    with PrivateMariaDB(options=options) as server:
        yield server


def test_the_log_is_read_over_tls(
    tls_server: PrivateMariaDB, tls_folder: Path, tmp_path: Path
) -> None:
    ca = tls_folder / "ca.pem"
    tested = Database(tls_server, "d", tls_connection(tls_server, ca))
    try:
        tested.run("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, v TEXT)")
        with opened(settings_for(tls_server, tmp_path, ["d.t"], tls_ca=ca)) as source:
            tested.run("USE d")
            tested.run("INSERT INTO t SELECT seq, REPEAT('x', 1000) FROM seq_1_to_3000")
            tested.run("INSERT INTO t VALUES (0, '')")
            assert len(read_changes(source, 3001)) == 3001
    finally:
        tested.connection.close()


def tls_connection(server: PrivateMariaDB, ca: Path) -> Any:
    return connect(server, ssl_ca=str(ca))


def test_a_certificate_of_another_authority_stops(
    tls_server: PrivateMariaDB, tls_folder: Path, tmp_path: Path
) -> None:
    settings = settings_for(tls_server, tmp_path, ["d.t"], tls_ca=tls_folder / "another-ca.pem")
    assert "check tls_ca" in refusal(settings)


def test_a_server_that_wants_tls_says_so(tls_server: PrivateMariaDB, tmp_path: Path) -> None:
    settings = settings_for(tls_server, tmp_path, ["d.t"])
    assert "set tls_ca" in refusal(settings, of_login=True)


def test_a_server_without_tls_is_refused_when_tls_is_set(
    table: Database, tls_folder: Path, tmp_path: Path
) -> None:
    text = refusal(watching(table, tmp_path, "t", tls_ca=tls_folder / "ca.pem"))
    assert "does not offer TLS" in text


def test_tls_files_that_are_wrong_are_named(tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("not a certificate")
    settings = PhysicalSourceSettings(
        name="x", uri="mysql://u@h", sources=("d.t",), tls_ca=tmp_path / "bad.pem"
    )
    with pytest.raises(SettingsError, match="tls_ca"):
        address_of(settings)
    with pytest.raises(SettingsError, match="need tls_ca"):
        address_of(settings.model_copy(update={"tls_ca": None, "tls_key": tmp_path / "k"}))


def test_a_replica_id_in_use_elsewhere_is_refused_once_it_is_sure(
    table: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = watching(table, tmp_path, "t", server_id=4711)
    with opened(settings):
        monkeypatch.setattr("os.getpid", lambda: 1)  # a relay elsewhere
        clock = itertools.count(0, CLASH_GRACE_S / 2).__next__
        other = ReadSource(settings, clock=clock)
        # It may be a connection of our own past, that the server has not missed yet.
        with pytest.raises(SourceUnavailableError, match="server_id 4711"):
            other.open(None)
        with pytest.raises(SourceUnavailableError, match="server_id 4711"):
            other.open(None)
        with pytest.raises(SourceStoppedError, match="another replica uses server_id 4711"):
            other.open(None)
    monkeypatch.undo()
    with opened(settings) as source:
        table.run("INSERT INTO t VALUES (1, 1)")
        assert read_changes(source, 1)[0].row["id"] == 1


def test_relays_that_throw_each_other_out_stop(table: Database, tmp_path: Path) -> None:
    settings = watching(table, tmp_path, "t", server_id=4712)
    sources = [ReadSource(settings) for _ in range(2)]
    errors: list[DatabusError] = []
    try:
        sources[0].open(None)
        for turn in range(3):
            sources[(turn + 1) % 2].open(None)
            with pytest.raises(DatabusError) as caught:
                read_full(sources[turn % 2], 1)
            errors.append(caught.value)
    finally:
        for source in sources:
            source.close()
    assert [type(error) for error in errors] == [
        SourceUnavailableError,
        SourceUnavailableError,
        SourceStoppedError,
    ]
    assert "server_id 4712" in str(errors[-1])


def test_the_servers_own_id_is_refused(table: Database, tmp_path: Path) -> None:
    assert "the server's own" in refusal(watching(table, tmp_path, "t", server_id=1))


def test_sources_of_one_process_have_ids_of_their_own(table: Database, tmp_path: Path) -> None:
    settings = watching(table, tmp_path, "t")
    with opened(settings) as first, opened(settings) as second:
        table.run("INSERT INTO t VALUES (1, 1)")
        assert read_full(first, 1) == read_full(second, 1)


def test_a_database_with_a_dot_in_its_name_is_refused_with_what_its_name_was_taken_for(
    table: Database, tmp_path: Path
) -> None:
    dotted = f"{table.name}.x"
    table.run(f"CREATE DATABASE `{dotted}`", f"CREATE TABLE `{dotted}`.t (id INT PRIMARY KEY)")
    try:
        for name in (f"{dotted}.t", f"`{dotted}`.t"):
            said = refusal(settings_for(table.server, tmp_path, [name]))
            assert "names stand without quotes" in said
            assert "a dot in its own name cannot be captured" in said
    finally:
        table.run(f"DROP DATABASE `{dotted}`")


def test_a_table_of_any_other_name_is_captured(table: Database, tmp_path: Path) -> None:
    names = ["a.b", "a b", "a`b", "a'b", 'a"b', "a/b", "a%2Fb", "a#b?c=d&e", "日本", "x" * 64]
    names += ["..", "T"]  # beside `t`
    quoted = ["`" + name.replace("`", "``") + "`" for name in names]
    table.run(*(f"CREATE TABLE {name} (id INT PRIMARY KEY)" for name in quoted))
    with opened(watching(table, tmp_path, *names, "t")) as source:
        table.run(*(f"INSERT INTO {name} VALUES (1)" for name in quoted))
        table.run(*(f"ALTER TABLE {name} ADD v INT" for name in quoted))
        table.run(*(f"INSERT INTO {name} VALUES (2, 3)" for name in quoted))
        changes = read_changes(source, 2 * len(names))
    sources = [f"{table.name}.{name}" for name in names]
    assert [change.table.source for change in changes] == sources * 2
    assert [change.row for change in changes[len(names) :]] == [{"id": 2, "v": 3}] * len(names)
