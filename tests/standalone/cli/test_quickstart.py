"""`databus quickstart` as somebody types it, on SQLite and on a MariaDB."""

from __future__ import annotations

import re
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from databus.cli.main import main
from databus.demo.private_mariadb import PrivateMariaDB
from databus.demo.processes import child_environment, free_port, python_module
from databus.standalone.quickstart.found import Found, FoundTable, Needs
from databus.standalone.quickstart.settings_file import settings_text
from tests import PATIENCE_S
from tests.mariadb_server import Database
from tests.standalone.nodes import (
    ROWS,
    SqliteOrders,
    make_shop,
    read_until_equal,
    started,
    writing,
)


def quickstart(folder: Path, *words: object, typed: str = "") -> Result:
    """Type the command that starts nothing."""
    return CliRunner().invoke(
        main,
        ["quickstart", "--no-run", "--folder", str(folder), *map(str, words)],
        input=typed,
    )


def mysql(shop: Database, folder: Path, *words: object, typed: str = "") -> Result:
    """Type the command with an administrator's account."""
    given = ("--account", "capture", "--password-file", admin(shop, folder))
    uri = f"{shop.server.uri}/{shop.name}"
    return quickstart(folder / "databus", uri, *given, *words, typed=typed)


def admin(shop: Database, folder: Path) -> Path:
    file = folder / "admin.password"
    file.write_text(shop.server.password)
    return file


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_one_command_serves_the_rows_of_an_sqlite_file_and_goes_on_after_a_kill(
    tmp_path: Path,
) -> None:
    path = make_shop(tmp_path)
    orders = SqliteOrders(path)
    with writing(orders.write), started(tmp_path, f"sqlite:{path}") as node:
        node.start()
        node.child.kill()
        assert mode_of(tmp_path / "databus" / "databus.toml") == 0o600
        node.start()
        node.wait_for(lambda: node.said.count("it goes on with that") == 1)
        node.wait_for(lambda: "active" in node.statuses().values())
    with started(tmp_path, f"sqlite:{path}") as again:
        again.start()
        assert read_until_equal(again, "shop.orders", orders.rows) == orders.rows()


def test_what_it_says_to_type_next_works_as_pasted(tmp_path: Path) -> None:
    path = make_shop(tmp_path, rows=1)
    with started(tmp_path, f"sqlite:{path}") as node:
        node.start()
        node.wait_for(lambda: "Ctrl-C ends it" in node.said)
        node.wait_for(lambda: "active" in node.statuses().values())
        SqliteOrders(path).write("INSERT INTO orders VALUES (7, 'sent')")
        (line,) = re.findall(r"^ +databus (tail .*)$", node.said, re.M)
        code = "\n".join(re.findall(r"^    (.*)$", node.said.partition("in Python:")[2], re.M))
        # Made to end: after the two rows, and after the one change.
        code = (
            code.replace("row)", "row, flush=True)") + "\n        if event.row['id'] == 7: exit()"
        )
        printed = run(python_module("databus.cli.main", *line.split(), "--count", 1))
        assert "id=7 status=sent" in printed
        printed = run([sys.executable, "-c", code])
        assert "{'id': 0, 'status': 'old'}" in printed
        assert "{'id': 7, 'status': 'sent'}" in printed


def run(command: list[str]) -> str:
    ended = subprocess.run(
        command,
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    return ended.stdout


@pytest.mark.mariadb
def test_one_command_serves_every_row_of_a_mariadb_while_a_writer_goes_on(
    shop: Database, tmp_path: Path
) -> None:
    shop.run(f"INSERT INTO orders VALUES {', '.join(f'({n}, 1)' for n in range(3, ROWS))}")
    given = ("--account", "capture", "--password-file", admin(shop, tmp_path))

    def rows() -> dict[int, str]:
        return dict(shop.run("SELECT id, status FROM orders"))

    with started(tmp_path, f"{shop.server.uri}/{shop.name}", *given) as node:
        with writing(shop.run):
            node.start()
            node.child.kill()
            node.start()
            node.wait_for(lambda: "active" in node.statuses().values())
        assert read_until_equal(node, f"{shop.name}.orders", rows) == rows()
        assert "Traceback" not in node.said
    folder = tmp_path / "databus"
    assert mode_of(folder / "databus.toml") == mode_of(folder / "capture.password") == 0o600
    password = (folder / "capture.password").read_text().strip()
    assert password not in node.said
    assert password not in (folder / "databus.toml").read_text()
    grants = " ".join(str(row[0]) for row in shop.run("SHOW GRANTS FOR 'capture'@'127.0.0.1'"))
    assert re.findall(r"GRANT (.*?) ON (\S+) TO", grants) == [
        ("REPLICATION SLAVE, BINLOG MONITOR", "*.*"),
        ("SELECT", f"`{shop.name}`.*"),
    ]


@pytest.mark.mariadb
def test_after_a_no_nothing_is_changed(shop: Database, tmp_path: Path) -> None:
    found = mysql(shop, tmp_path, typed="n\n")
    assert found.exit_code == 1
    assert "Run this SQL?" in found.output
    assert "nothing was changed" in found.output
    assert not (tmp_path / "databus").exists()
    assert shop.run("SELECT 1 FROM mysql.user WHERE User = 'capture'") == ()


@pytest.mark.mariadb
def test_print_only_prints(shop: Database, tmp_path: Path) -> None:
    found = mysql(shop, tmp_path, "--print")
    assert found.exit_code == 0
    assert "CREATE USER 'capture'@'127.0.0.1' IDENTIFIED BY '…';" in found.output
    assert not (tmp_path / "databus").exists()
    assert shop.run("SELECT 1 FROM mysql.user WHERE User = 'capture'") == ()


@pytest.mark.mariadb
def test_typed_again_it_changes_nothing_more(shop: Database, tmp_path: Path) -> None:
    first = mysql(shop, tmp_path, "--yes")
    assert first.exit_code == 0, first.output
    file = tmp_path / "databus" / "databus.toml"
    file.write_text(file.read_text() + "# mine\n")
    uri = f"mysql://root@127.0.0.1:{shop.server.port}/{shop.name}"
    second = quickstart(tmp_path / "databus", uri, "-p", "--account", "capture")
    assert "Password" not in second.output, "nobody logs in"
    assert second.exit_code == 0
    assert "it goes on with that" in second.output
    assert file.read_text().endswith("# mine\n")


def test_typed_again_after_a_new_table_it_serves_that_tables_rows_too(tmp_path: Path) -> None:
    path = make_shop(tmp_path, rows=3)
    orders, uri = SqliteOrders(path), f"sqlite:{path}"
    with started(tmp_path, uri) as node:
        node.start()
        node.wait_for(lambda: "active" in node.statuses().values())
    orders.write("CREATE TABLE parcels (id INTEGER PRIMARY KEY, status TEXT)")
    orders.write("INSERT INTO parcels VALUES (1, 'sent')")
    with started(tmp_path, uri) as again:
        again.start()
        assert "new, and not captured: shop.parcels" in again.said
        orders.write("INSERT INTO parcels VALUES (2, 'new')")
        wanted = {1: "sent", 2: "new"}
        assert read_until_equal(again, "shop.parcels", lambda: wanted) == wanted
        assert read_until_equal(again, "shop.orders", orders.rows) == orders.rows()


@pytest.mark.mariadb
def test_new_tables_are_found_with_the_account_of_capture(shop: Database, tmp_path: Path) -> None:
    assert mysql(shop, tmp_path, "--yes").exit_code == 0
    shop.run(
        "CREATE TABLE parcels (id INT PRIMARY KEY)",
        "CREATE TABLE parts (id INT PRIMARY KEY, parcel INT, FOREIGN KEY (parcel) REFERENCES"
        " parcels (id) ON DELETE CASCADE)",
    )
    file = tmp_path / "databus" / "databus.toml"
    before = file.read_text()
    uri = f"mysql://root@127.0.0.1:{shop.server.port}/{shop.name}"
    # The account is the one in the file.
    given = (tmp_path / "databus", uri, "-p")
    told = quickstart(*given)
    assert f"new, and not captured: {shop.name}.parcels\n" in told.output
    assert "or give --yes" in told.output
    assert file.read_text() == before
    added = quickstart(*given, "--yes")
    assert "Password" not in added.output, "nobody but the account of capture logs in"
    assert f'"{shop.name}.parcels"' in file.read_text()
    assert f"{shop.name}.parts" not in file.read_text(), "a cascade changes rows unlogged"
    assert "new, and not captured" not in quickstart(*given).output


def test_a_database_that_does_not_answer_keeps_nothing_from_going_on(tmp_path: Path) -> None:
    uri = f"mysql://capture@127.0.0.1:{free_port()}"
    label, secret = f"{uri}/shop".replace("capture@", ""), tmp_path / "capture.password"
    secret.write_text("secret")
    secret.chmod(0o600)
    orders = (FoundTable("shop.orders"),)
    found = Found("shop", label, uri, orders, Needs(), password_file=secret)
    (tmp_path / "databus.toml").write_text(settings_text(found, 7, 8))
    typed = quickstart(tmp_path, f"{uri}/shop", "--account", "capture")
    assert typed.exit_code == 0, typed.output
    assert "warning: nobody looked for new tables" in typed.output


@pytest.mark.mariadb
def test_with_its_own_account_it_needs_no_administrator(shop: Database, tmp_path: Path) -> None:
    assert mysql(shop, tmp_path, "--yes").exit_code == 0
    (tmp_path / "databus" / "databus.toml").unlink()
    uri = f"mysql://capture@127.0.0.1:{shop.server.port}/{shop.name}"
    found = quickstart(tmp_path / "databus", uri, "--account", "capture")
    assert found.exit_code == 0, found.output
    assert "nothing is missing in the database" in found.output


@pytest.mark.mariadb
def test_a_wrong_password_says_how_to_give_the_right_one(shop: Database, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("wrong")
    uri = f"{shop.server.uri}/{shop.name}"
    found = quickstart(tmp_path / "databus", uri, "--password-file", wrong)
    assert found.exit_code == 1
    assert "Access denied" in found.output
    assert "give the user's password with -p" in found.output
    assert not (tmp_path / "databus").exists()


@pytest.mark.mariadb
def test_the_password_is_asked_for_or_in_the_environment(
    shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, secret = f"{shop.server.uri}/{shop.name}", shop.server.password
    given = ("--print", "--account", "capture")
    asked = quickstart(tmp_path, uri, "-p", *given, typed=f"{secret}\n")
    assert asked.exit_code == 0, asked.output
    assert secret not in asked.output
    monkeypatch.setenv("ADMIN", secret)
    assert quickstart(tmp_path, uri, "--password-env", "ADMIN", *given).exit_code == 0
    none = quickstart(tmp_path, uri, "--password-env", "NOBODY", *given)
    assert "the variable NOBODY is not set" in none.output
    both = quickstart(tmp_path, uri, "-p", "--password-env", "ADMIN", *given)
    assert "give one of" in both.output


@pytest.mark.mariadb
def test_a_server_without_a_log_ends_with_the_lines_that_it_needs(tmp_path: Path) -> None:
    with PrivateMariaDB(options={"skip-log-bin": "ON"}) as server:
        uri = f"{server.uri}/mysql"
        secret = tmp_path / "admin"
        secret.write_text(server.password)
        found = quickstart(tmp_path / "databus", uri, "-y", "--password-file", secret)
    assert found.exit_code == 1
    assert "log_bin is OFF" in found.output
    assert "    [mysqld]\n    log_bin\n" in found.output
    assert "start the server again; nothing can be captured before" in found.output
    assert not (tmp_path / "databus").exists()


def test_a_port_in_use_is_said_before_anything_is_changed(tmp_path: Path) -> None:
    path = make_shop(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = quickstart(tmp_path / "databus", f"sqlite:{path}", "-y", "--port", port)
    assert found.exit_code == 1
    assert f"127.0.0.1:{port} is in use" in found.output
    assert "--port" in found.output
    assert not (tmp_path / "databus").exists()


def test_settings_of_somebody_else_are_not_overwritten(tmp_path: Path) -> None:
    path = make_shop(tmp_path)
    (tmp_path / "databus.toml").write_text('data_dir = "mine"\n')
    found = quickstart(tmp_path, f"sqlite:{path}", "-y")
    assert found.exit_code == 1
    assert "does not overwrite it" in found.output
    assert (tmp_path / "databus.toml").read_text() == 'data_dir = "mine"\n'


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("mysql://root@127.0.0.1", "name a database"),
        ("mysql://root:secret@127.0.0.1/shop", "has a password in it"),
        ("generator:?rate=1", "or sqlite:FILE"),
        ("shop.db", "must begin with a scheme"),
        ("sqlite:none.db", "does not exist"),
    ],
)
def test_a_uri_that_cannot_be_used_is_said(tmp_path: Path, uri: str, said: str) -> None:
    found = quickstart(tmp_path, uri)
    assert found.exit_code == 1
    assert said in found.output
    assert "secret" not in found.output
    assert list(tmp_path.iterdir()) == []
