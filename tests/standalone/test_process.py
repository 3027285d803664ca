"""A relay and its bootstrap pair in one process, on real databases, killed and ended."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from databus.conf.loading import build_settings
from databus.conf.settings import RelaySettings
from databus.schemas.errors import SettingsError
from databus.standalone.process import pair_settings
from tests import PATIENCE_S
from tests.mariadb_server import Database
from tests.standalone.nodes import (
    ROWS,
    Node,
    SqliteOrders,
    made,
    make_shop,
    read_until_equal,
    sqlite_source,
    writing,
)

pytest_plugins = ["tests.mariadb"]

TOKEN = "a-token-that-is-long-enough"
SOURCE = {"name": "shop", "uri": "sqlite:/shop.db", "sources": ["shop.orders"]}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """`databus run` of `relay.toml`, not started."""
    with made(tmp_path) as node:
        yield node


def test_a_client_gets_the_rows_from_before_and_every_change_while_a_writer_goes_on(
    node: Node,
) -> None:
    shop = make_shop(node.folder)
    orders = SqliteOrders(shop)
    node.write(sqlite_source(shop))
    with writing(orders.write):
        node.start()
        node.wait_for(lambda: "active" in node.statuses().values())
    assert read_until_equal(node, "shop.orders", orders.rows) == orders.rows()
    assert "Traceback" not in node.said


@pytest.mark.mariadb
def test_a_client_gets_every_row_of_a_mariadb_while_a_writer_goes_on(
    node: Node, database: Database
) -> None:
    database.run("CREATE TABLE orders (id INT PRIMARY KEY, status VARCHAR(40))")
    database.run("INSERT INTO orders VALUES " + ", ".join(f"({n}, 'old')" for n in range(ROWS)))
    source, server = f"{database.name}.orders", database.server
    (node.folder / "password").write_text(server.password)
    (node.folder / "password").chmod(0o600)
    node.write(
        f'name = "shop"\nuri = "{server.uri}"\nsources = ["{source}"]\npassword_file = "password"'
    )
    with writing(database.run):
        node.start()
        node.wait_for(lambda: "active" in node.statuses().values())

    def rows() -> dict[int, str]:
        return dict(database.run("SELECT id, status FROM orders"))

    assert read_until_equal(node, source, rows) == rows()


def test_a_table_that_a_pattern_finds_later_is_kept_by_the_pair_within_seconds(
    node: Node,
) -> None:
    shop = make_shop(node.folder)
    orders = SqliteOrders(shop)
    node.write(f'name = "shop"\nuri = "sqlite:{shop}"\nsources = ["shop.*"]')
    node.start()
    node.wait_for(lambda: "active" in node.statuses().values())
    assert read_until_equal(node, "shop.orders", orders.rows) == orders.rows()
    assert node.health(node.url)[1]["bootstrap"]["warnings"] == []
    orders.write("CREATE TABLE later (id INTEGER PRIMARY KEY, status TEXT)")
    orders.write("INSERT INTO later VALUES (1, 'perhaps before the triggers'), (2, 'x')")
    node.wait_for(lambda: node.statuses() == {"shop.orders": "active", "shop.later": "active"})
    node.wait_for(lambda: node.health(node.url)[1]["bootstrap"]["warnings"] == [])
    orders.write("INSERT INTO later VALUES (3, 'after')")
    wanted = {1: "perhaps before the triggers", 2: "x", 3: "after"}
    assert read_until_equal(node, "shop.later", lambda: wanted) == wanted
    node.child.stop(20)
    assert node.ended() == 0


@pytest.mark.mariadb
def test_a_client_gets_every_row_of_tables_that_come_while_others_are_read(
    node: Node, database: Database
) -> None:
    """The pair starts again in the middle of its reading, and goes on with it."""
    name, server = database.name, database.server
    create = "CREATE TABLE {} (id INT PRIMARY KEY, status VARCHAR(40))"
    many = "INSERT INTO {} SELECT seq, CONCAT('row ', seq) FROM seq_1_to_30000"
    database.run(create.format("first"), many.format("first"))
    (node.folder / "password").write_text(server.password)
    (node.folder / "password").chmod(0o600)
    node.write(
        f'name = "shop"\nuri = "{server.uri}"\nsources = ["{name}.*"]\npassword_file = "password"',
        pair="chunk_rows = 100",
    )
    node.start()
    tables = ["first", "second", "third", "fourth"]
    for table in tables[1:]:
        known = f"{name}.{tables[tables.index(table) - 1]}"
        node.wait_for(lambda known=known: known in node.statuses())  # type: ignore[misc]
        database.run(create.format(table), many.format(table))
    node.wait_for(lambda: node.statuses() == {f"{name}.{one}": "active" for one in tables})
    wanted = {number: f"row {number}" for number in range(1, 30_001)}
    for table in tables:
        assert read_until_equal(node, f"{name}.{table}", lambda: wanted) == wanted


@pytest.mark.mariadb
def test_tables_of_a_pattern_that_are_gone_before_the_pair_reads_them_are_no_trouble(
    node: Node, database: Database
) -> None:
    name, server = database.name, database.server
    database.run("CREATE TABLE orders (id INT PRIMARY KEY, status VARCHAR(40))")
    (node.folder / "password").write_text(server.password)
    (node.folder / "password").chmod(0o600)
    node.write(
        f'name = "shop"\nuri = "{server.uri}"\nsources = ["{name}.*"]\npassword_file = "password"'
    )
    node.start()
    node.wait_for(lambda: "active" in node.statuses().values())
    for table in ("dropped", "old_name"):
        database.run(f"CREATE TABLE {table} (id INT PRIMARY KEY, status VARCHAR(40))")
        database.run(f"INSERT INTO {table} VALUES (1, 'x')")
    database.run("RENAME TABLE old_name TO new_name", "DROP TABLE dropped")
    tables = ("orders", "dropped", "old_name", "new_name")
    for table in tables[1:]:
        wanted = f"{name}.{table}"
        node.wait_for(lambda wanted=wanted: wanted in str(node.health(node.url)[1]))  # type: ignore[misc]
    node.child.stop(20)
    node.start()
    node.wait_for(lambda: node.statuses() == {f"{name}.{one}": "active" for one in tables})
    node.wait_for(lambda: node.health(node.url)[0] == 200)
    assert read_until_equal(node, f"{name}.new_name", lambda: {1: "x"}) == {1: "x"}


def test_patterns_that_have_found_nothing_leave_the_pair_nothing_to_keep_and_are_said(
    node: Node,
) -> None:
    shop = make_shop(node.folder)
    node.write(f'name = "shop"\nuri = "sqlite:{shop}"\nsources = ["shop.none_*"]')
    node.child.start()
    assert node.ended() == 1
    assert "its patterns have found no table yet" in node.said


def test_a_kill_in_the_middle_of_seeding_loses_nothing_when_it_is_started_again(
    node: Node,
) -> None:
    shop = make_shop(node.folder)
    orders = SqliteOrders(shop)
    node.write(sqlite_source(shop), "chunk_rows = 50\nmost_rows_per_s = 200")
    with writing(orders.write):
        node.start()
        node.wait_for(lambda: "seeding" in node.statuses().values())
        node.child.kill()
        assert "active" not in node.said
        node.start()
        node.wait_for(lambda: "active" in node.statuses().values())
    assert read_until_equal(node, "shop.orders", orders.rows) == orders.rows()


def test_readers_may_have_processes_of_their_own(node: Node) -> None:
    shop = make_shop(node.folder)
    orders = SqliteOrders(shop)
    node.write(sqlite_source(shop))
    node.file.write_text("serving_processes = 1\n" + node.file.read_text())
    node.start()
    assert read_until_equal(node, "shop.orders", orders.rows) == orders.rows()
    os.kill(node.child.pid, signal.SIGTERM)
    assert node.ended() == 0


def test_sigterm_ends_both_and_leaves_nothing_listening(node: Node) -> None:
    node.write(sqlite_source(make_shop(node.folder)))
    node.start()
    os.kill(node.child.pid, signal.SIGTERM)
    assert node.ended() == 0
    for port in (node.port, node.bootstrap_port):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S).close()
    assert "Traceback" not in node.said


@pytest.mark.parametrize("which", ["http", "bootstrap"])
def test_a_port_in_use_ends_the_whole_process_and_changes_nothing(node: Node, which: str) -> None:
    shop = make_shop(node.folder)
    before = shop.read_bytes()
    node.write(sqlite_source(shop))
    port = node.port if which == "http" else node.bootstrap_port
    with socket.create_server(("127.0.0.1", port)):
        node.child.start()
        assert node.ended() == 1
    assert f"127.0.0.1:{port} is in use" in node.said
    assert f"choose another port ({which}.port)" in node.said
    assert "Traceback" not in node.said
    assert shop.read_bytes() == before


def test_an_unknown_key_of_the_pair_is_named_with_the_one_that_was_meant(node: Node) -> None:
    node.write(sqlite_source(make_shop(node.folder)), "chunk_row = 5")
    node.child.start()
    assert node.ended() == 1
    assert "bootstrap.chunk_row is not a setting; did you mean chunk_rows?" in node.said


def test_a_source_without_tables_to_read_is_refused(node: Node) -> None:
    node.write('name = "made"\nuri = "generator:?rate=10"\nsources = ["made.rows"]')
    node.child.start()
    assert node.ended() == 1
    assert "a bootstrap pair cannot read its tables" in node.said


def test_a_store_that_another_process_fills_ends_the_relay_too(node: Node) -> None:
    shop = make_shop(node.folder)
    node.write(sqlite_source(shop), 'data_dir = "stores"')
    node.start()
    other = Node(node.folder / "other", "run", "-c", node.folder / "other" / "relay.toml")
    other.folder.mkdir()
    other.write(sqlite_source(shop), f'data_dir = "{node.folder}/stores"')
    other.child.start()
    assert other.ended() == 1
    assert "has a producer already" in other.said
    node.wait_for(lambda: node.health(node.url)[0] == 200)


def test_the_pair_reads_a_relay_that_wants_tokens_with_one_of_them(node: Node) -> None:
    shop = make_shop(node.folder)
    orders = SqliteOrders(shop)
    tokens = node.folder / "tokens"
    tokens.write_text(f"{TOKEN}\n")
    tokens.chmod(0o600)
    node.write(sqlite_source(shop), http='reader_tokens_file = "tokens"')
    node.start()
    access = {"token_file": tokens}
    found = read_until_equal(node, "shop.orders", orders.rows, access=access)
    assert found == orders.rows()


def test_the_relays_health_has_the_problems_of_its_pair(node: Node) -> None:
    shop = make_shop(node.folder)
    node.write(sqlite_source(shop))
    node.start()
    node.wait_for(lambda: node.health(node.url)[0] == 200)
    assert node.health(node.url)[1]["bootstrap"] == {"problems": {}, "warnings": []}
    stores = node.folder / "data" / "bootstrap"
    for file in stores.glob("shop.db*"):
        file.unlink()
    node.wait_for(lambda: node.health(node.url)[0] == 503)
    assert node.health(node.url)[1]["bootstrap"]["problems"]["shop"]


def test_a_relay_alone_takes_the_same_settings(tmp_path: Path) -> None:
    alone = Node(tmp_path, "relay", "run", "-c", tmp_path / "relay.toml")
    alone.write(sqlite_source(make_shop(tmp_path)))
    alone.child.start()
    try:
        alone.wait_for(lambda: f"listening on {alone.url}" in alone.said)
        assert not (tmp_path / "data" / "bootstrap").exists()
    finally:
        alone.child.stop()


def relay_settings(**more: object) -> RelaySettings:
    raw = {"data_dir": "/data", "physical_sources": [SOURCE], **more}
    return build_settings(raw, RelaySettings)


def test_without_a_word_about_the_pair_it_has_its_defaults_and_the_relays_databases() -> None:
    settings = relay_settings()
    pair = pair_settings(settings, "http://127.0.0.1:11115")
    assert pair.relays == ("http://127.0.0.1:11115",)
    assert pair.data_dir == Path("/data/bootstrap")
    assert pair.http.port == 11116
    assert pair.physical_sources == settings.physical_sources


def test_a_pair_has_the_columns_settings_of_the_tables_that_the_relay_knows() -> None:
    columns = [{"tables": ["shop.users"], "exclude": ["email"]}]
    source = SOURCE | {"sources": ["shop.*"], "columns": columns}
    settings = relay_settings(physical_sources=[source])
    (nothing,) = pair_settings(settings).physical_sources
    assert (nothing.source_names, nothing.columns) == ([], ())
    found = settings.physical_sources[0].with_found(["shop.users"])
    known = settings.model_copy(update={"physical_sources": (found,)})
    (one,) = pair_settings(known).physical_sources
    assert (one.source_names, one.columns) == (["shop.users"], found.columns)


def test_what_the_relay_says_of_its_server_holds_for_the_pairs_server() -> None:
    http = {"host": "0.0.0.0", "reader_token_env": "READERS", "max_wait_ms": 5}
    settings = relay_settings(http=http, bootstrap={"port": 7, "chunk_rows": 3})
    pair = pair_settings(settings, "http://0.0.0.0:11115")
    assert (pair.http.host, pair.http.port, pair.http.max_wait_ms) == ("0.0.0.0", 7, 5)
    assert pair.relays == ("http://127.0.0.1:11115",)
    assert pair.relay_access.token_env == pair.http.reader_token_env == "READERS"
    assert pair.chunk_rows == 3


def test_with_tls_the_pair_reads_the_relay_by_the_name_in_its_certificate() -> None:
    http = {"tls_cert": "/relay.pem", "tls_key": "/relay.key"}
    url = "https://relay-a.example.com:11115"
    settings = relay_settings(http=http, public_url=url, bootstrap={"relay_tls_ca": "/ca.pem"})
    pair = pair_settings(settings, "https://127.0.0.1:11115")
    assert pair.relays == (url,)
    assert pair.relay_access.tls_ca == Path("/ca.pem")


def test_a_pair_that_clients_could_not_find_is_refused() -> None:
    settings = relay_settings(
        coordinator="file:/servers",
        public_url="http://relay-a.example.com:11115",
        http={"host": "0.0.0.0", "open_to_all": True},
    )
    with pytest.raises(SettingsError, match=r"\[bootstrap\]: public_url .*clients cannot find it"):
        pair_settings(settings, "http://0.0.0.0:11115")
