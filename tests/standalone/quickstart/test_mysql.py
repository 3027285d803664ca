"""What quickstart finds on a MariaDB, and the SQL that it says is missing."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from databus.demo.private_mariadb import PrivateMariaDB
from databus.relay.sources.keys import NO_KEY
from databus.schemas.errors import SettingsError, SourceError
from databus.standalone.quickstart.found import Found, Statement
from databus.standalone.quickstart.mysql import Login, Server
from tests.mariadb_server import Database, connect
from tests.relay.sources.certificates import write_certificates

pytestmark = pytest.mark.mariadb


def login(shop: Database, folder: Path, **more: object) -> Login:
    options: dict[str, object] = {
        "uri": f"{shop.server.uri}/{shop.name}",
        "password": shop.server.password,
        "account": "capture",
        "password_file": folder / "capture.password",
    }
    return Login(**(options | more))  # type: ignore[arg-type]


def shown(found: Found) -> list[str]:
    return [statement.shown for statement in found.needs.statements]


def test_the_sql_makes_an_account_with_exactly_the_grants_of_capture(
    shop: Database, tmp_path: Path
) -> None:
    server = Server(login(shop, tmp_path))
    found = server.look()
    assert shown(found) == [
        "SET GLOBAL binlog_row_metadata = 'FULL'",
        "CREATE USER 'capture'@'127.0.0.1' IDENTIFIED BY '…'",
        "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'capture'@'127.0.0.1'",
        f"GRANT SELECT ON `{shop.name}`.* TO 'capture'@'127.0.0.1'",
    ]
    assert found.password not in "".join(shown(found))
    assert not (tmp_path / "capture.password").exists()
    server.run(found.needs.statements)
    (tmp_path / "capture.password").write_text(found.password)
    again = server.look()
    assert (again.needs.statements, again.password) == ((), found.password)


def test_grants_that_were_taken_away_are_given_again(shop: Database, tmp_path: Path) -> None:
    server = Server(login(shop, tmp_path))
    found = server.look()
    server.run(found.needs.statements)
    (tmp_path / "capture.password").write_text(found.password)
    shop.run("REVOKE REPLICATION SLAVE ON *.* FROM 'capture'@'127.0.0.1'")
    assert [text.split()[0] for text in shown(server.look())] == ["GRANT", "GRANT"]


def test_a_password_without_its_account_is_used_for_the_account(
    shop: Database, tmp_path: Path
) -> None:
    """Quickstart was killed after it had written the file."""
    (tmp_path / "capture.password").write_text("from-the-first-time\n")
    found = Server(login(shop, tmp_path)).look()
    assert found.password == "from-the-first-time"
    assert any("IDENTIFIED BY 'from-the-first-time'" in s.text for s in found.needs.statements)


def test_an_account_of_somebody_else_is_not_taken_over(shop: Database, tmp_path: Path) -> None:
    shop.run("CREATE USER 'capture'@'127.0.0.1' IDENTIFIED BY 'theirs'")
    with pytest.raises(SettingsError, match="is there already, and its password is not in"):
        Server(login(shop, tmp_path)).look()


def test_tables_that_cannot_be_captured_say_why_and_the_others_are_captured(
    shop: Database, tmp_path: Path
) -> None:
    shop.run(
        "CREATE TABLE keyless (a INT)",
        "CREATE VIEW newest AS SELECT * FROM orders",
        "CREATE TABLE items (id INT PRIMARY KEY, o INT,"
        " CONSTRAINT of_order FOREIGN KEY (o) REFERENCES orders (id) ON DELETE CASCADE)",
        "CREATE TABLE `a,b` (id INT PRIMARY KEY)",
    )
    found = Server(login(shop, tmp_path)).look()
    by_name = {table.source.partition(".")[2]: table for table in found.tables}
    assert by_name["keyless"].note == NO_KEY
    assert "is a view" in by_name["newest"].problem
    assert "foreign key of_order" in by_name["items"].problem
    assert "cannot be captured" in by_name["a,b"].problem
    assert found.sources == [f"{shop.name}.keyless", f"{shop.name}.orders"]


def test_a_setting_that_needs_no_restart_is_set_and_kept_in_the_option_file(
    shop: Database, tmp_path: Path
) -> None:
    shop.run("SET GLOBAL binlog_row_image = 'MINIMAL'")
    needs = Server(login(shop, tmp_path)).look().needs
    assert needs.statements[0].text == "SET GLOBAL binlog_row_image = 'FULL'"
    assert needs.option_lines == (
        "[mysqld]",
        "binlog_row_image = FULL",
        "binlog_row_metadata = FULL",
    )


def test_connections_that_are_open_from_before_a_setting_are_warned_of(
    shop: Database, tmp_path: Path
) -> None:
    server = Server(login(shop, tmp_path))
    assert server.run([Statement("SELECT 1", "SELECT 1")]) == ""
    change = "SET GLOBAL binlog_row_image = 'FULL'"
    note = server.run([Statement(change, change)])
    # The one of this test is such a connection.
    assert "connections are open from before (databus" in note
    assert "until they reconnect" in note


def test_root_looks_through_the_socket_and_capture_logs_in_over_tcp(
    shop: Database, tmp_path: Path
) -> None:
    uri = f"mysql://root@127.0.0.1:{shop.server.port}/{shop.name}"
    found = Server(login(shop, tmp_path, uri=uri, password="", socket=shop.server.socket)).look()
    assert any("CREATE USER 'capture'@'127.0.0.1'" in text for text in shown(found))


def test_a_database_that_is_not_there_is_said_with_those_that_are(
    shop: Database, tmp_path: Path
) -> None:
    server = Server(login(shop, tmp_path, uri=f"{shop.server.uri}/shopp"))
    with pytest.raises((SettingsError, SourceError), match=r"shopp"):
        server.look()


def test_a_server_without_a_log_is_said_with_the_lines_of_its_option_file(tmp_path: Path) -> None:
    with PrivateMariaDB(options={"skip-log-bin": "ON"}) as server:
        with closing(connect(server)) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE d")
            cursor.execute("CREATE TABLE d.t (id INT PRIMARY KEY)")
        made = Login(uri=f"{server.uri}/d", password=server.password, account="capture")
        needs = Server(made).look().needs
    assert needs.problems == ("log_bin is OFF, and must be ON: start the server with --log-bin",)
    assert needs.option_lines[:2] == ("[mysqld]", "log_bin")
    assert needs.statements == ()


def test_a_server_that_wants_tls_is_looked_at_with_the_ca_that_is_given(tmp_path: Path) -> None:
    write_certificates(tmp_path)
    ca = tmp_path / "ca.pem"
    options = {
        "ssl-ca": str(ca),
        "ssl-cert": str(tmp_path / "cert.pem"),
        "ssl-key": str(tmp_path / "key.pem"),
        "require-secure-transport": "ON",
    }
    with PrivateMariaDB(options=options) as server:
        with closing(connect(server, ssl_ca=str(ca))) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE d")
            cursor.execute("CREATE TABLE d.t (id INT PRIMARY KEY)")
        made = Login(
            uri=f"{server.uri}/d",
            password=server.password,
            account="capture",
            password_file=tmp_path / "capture.password",
            tls_ca=ca,
        )
        found = Server(made).look()
        assert (found.sources, found.tls_ca) == (["d.t"], ca)
        Server(made).run(found.needs.statements)
        made.password_file.write_text(found.password)
        assert Server(made).look().needs.statements == ()
        with pytest.raises(SourceError, match="set tls_ca"):
            Server(replace(made, tls_ca=None)).look()
