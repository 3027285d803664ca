"""A value that the settings protect is found nowhere: in no file, no answer, no message."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from databus.client import DatabusClient
from tests import PATIENCE_S
from tests.mariadb_server import Database
from tests.promises.protected_columns.shop import (
    SECRET,
    MariadbShop,
    Shop,
    SqliteShop,
    answers,
    fill,
    said_by_doors,
    user,
    write_settings,
)
from tests.standalone.nodes import Node, made

pytest_plugins = ["tests.mariadb"]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """`databus run`, not started."""
    with made(tmp_path) as node:
        yield node


def consumed(node: Node, source: str, last: int) -> list[str]:
    """Return all that a consumer sees of a source, from the beginning, up to a row."""
    found, end_s = [], time.monotonic() + PATIENCE_S
    client = DatabusClient(
        [node.url], bootstrap_servers=[node.bootstrap_url], start="beginning", wait_ms=200
    )
    with client:
        for window in client.windows(source):
            for event in window.events:
                found.append(repr((event.key, event.row, event.before, event.metadata)))
                if event.row.get("id") == last and not event.is_delete:
                    return found
            assert time.monotonic() < end_s, found[-3:]
    return found


def holds_secret(data: bytes) -> bool:
    """Return whether bytes have a protected value."""
    # The place of a scan, which a store keeps, has keys in hexadecimal digits.
    return any(form in data for form in (SECRET.encode(), SECRET.encode().hex().encode()))


def files_with_secrets(node: Node) -> list[Path]:
    """Return the files with such a value, but for the database."""
    files = [path for path in node.folder.rglob("*") if path.is_file()]
    ours = [path for path in files if path.name not in ("shop.db", "shop.db-wal", "shop.db-shm")]
    return [path for path in ours if holds_secret(path.read_bytes())]


def change(shop: Shop) -> None:
    """Write rows and statements with protected values, and more than a ring holds."""
    shop.run(
        *(
            f"UPDATE users SET email = '{SECRET}new{n}@y', phone = '{SECRET}', password = "
            f"'{SECRET}2', note = 'visible {SECRET} more' WHERE id = {n} /* why: {SECRET} */"
            for n in range(8)
        ),
        f"UPDATE logins SET n = 70 WHERE email = '{SECRET}3@x'",
        f"UPDATE logins SET email = '{SECRET}new@x' WHERE email = '{SECRET}4@x'",
        f"DELETE FROM logins WHERE email = '{SECRET}5@x'",
        "DELETE FROM users WHERE id = 9",
        f"ALTER TABLE users ADD COLUMN token_a VARCHAR(40) DEFAULT '{SECRET}default'",
        user(100, f", '{SECRET}token'"),
        *(f"INSERT INTO plain VALUES ({n}, '{n:01000d}')" for n in range(120)),
    )


def test_a_protected_value_of_sqlite_is_found_nowhere(node: Node) -> None:
    check(node, SqliteShop(node.folder))


@pytest.mark.mariadb
def test_a_protected_value_of_mariadb_is_found_nowhere(node: Node, database: Database) -> None:
    check(node, MariadbShop(node.folder, database))


def check(node: Node, shop: Shop) -> None:
    """Seed, read in every way, and stop capture: no protected value may be anywhere."""
    fill(shop)
    write_settings(node, shop)
    node.start()
    node.wait_for(lambda: set(node.statuses().values()) == {"active"})
    scn = max(one["scn"] for one in node.health(node.url)[1]["physicalSources"].values())
    change(shop)
    sources = [f"{shop.name}.{one}" for one in ("users", "logins", "plain")]
    consumed(node, sources[0], 100)
    shop.run(user(101, f", '{SECRET}token'"))
    rows = consumed(node, sources[0], 101)
    assert "'visible '" in rows[-1]
    assert not holds_secret("".join(rows).encode())
    for answer in said_by_doors(node, shop):
        assert (b"visible " in answer, holds_secret(answer)) == (True, False)
    asked = dict(answers(node, sources, scn))
    assert [name for name, answer in asked.items() if holds_secret(answer)] == []
    assert b"visible " in asked[f"/stream {scn}"], "it has the changes from before the ring, too"
    assert b'"rows":[{' in b"".join(asked[f"rows of {one}"] for one in sources)
    assert files_with_secrets(node) == []
    code, said = verify(node)
    assert (code, holds_secret(said.encode())) == (0, False), said
    stop_capture(node, shop)
    asked = dict(answers(node, sources, scn))
    assert [name for name, answer in asked.items() if holds_secret(answer)] == []
    assert files_with_secrets(node) == []
    assert not holds_secret(node.said.encode())


@pytest.mark.mariadb
def test_a_table_goes_on_when_the_settings_have_the_new_name_of_a_protected_column(
    node: Node, database: Database
) -> None:
    shop = MariadbShop(node.folder, database)
    fill(shop)
    write_settings(node, shop)
    node.start()
    node.wait_for(lambda: set(node.statuses().values()) == {"active"})
    shop.run("ALTER TABLE users RENAME COLUMN phone TO mobile", user(100))
    node.wait_for(lambda: "users stopped alone" in node.said)
    node.child.stop(20)
    node.file.write_text(node.file.read_text().replace("phone =", "mobile ="))
    node.start()
    source = f"{shop.name}.users"
    node.wait_for(lambda: run("source", "repair", "shop", source, "--relay", node.url)[0] == 0)
    rows = consumed(node, source, 100)
    assert all("'mobile': None" in row for row in rows)
    assert (len(rows), holds_secret("".join(rows).encode())) == (31, False)
    assert files_with_secrets(node) == []


def stop_capture(node: Node, shop: Shop) -> None:
    """Have both tables stop, each by an error that is about a value or a column."""
    shop.run(
        "ALTER TABLE logins RENAME COLUMN email TO mail",
        f"INSERT INTO logins VALUES ('{SECRET}200@x', 200)",
        "ALTER TABLE users RENAME COLUMN phone TO mobile",
        user(200, f", '{SECRET}token'"),
        "INSERT INTO plain VALUES (2000, 'after')",
    )
    node.wait_for(lambda: "has no column email, which `columns` names" in node.said)
    node.wait_for(lambda: "has no column phone, which `columns` names" in node.said)


def verify(node: Node) -> tuple[int, str]:
    """Run `databus bootstrap verify` with settings for the pair alone."""
    text = node.file.read_text().partition("[[physical_sources]]")[2].partition("[canal]")[0]
    file = node.folder / "bootstrap.toml"
    file.write_text(
        f'data_dir = "data/bootstrap"\nrelays = ["{node.url}"]\n[[physical_sources]]{text}'
    )
    return run("bootstrap", "verify", "-c", str(file), "--json")


def run(*words: str) -> tuple[int, str]:
    """Run a command; return its exit code, and what it prints."""
    command = [sys.executable, "-m", "databus.cli.main", *words]
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False)
    return done.returncode, (done.stdout + done.stderr).decode()
