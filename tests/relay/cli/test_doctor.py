"""`databus doctor` on real databases and servers, with real wrong settings and grants."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from databus.cli.main import main
from databus.conf.settings import MaxScnSettings
from databus.demo.private_mariadb import HOST, PrivateMariaDB
from databus.doctor.machine import MACHINE
from databus.relay.capture.max_scn import FileMaxScn, SqliteMaxScn
from databus.relay.cli.doctor import saved_scn
from databus.schemas.scn import BinlogPosition
from tests.mariadb_server import Database, fresh_database
from tests.promises.running import RunningRelay, Shop, mysql_source, running, to_toml, wait_until
from tests.relay.fakes import ServedRelay

pytest_plugins = ["tests.mariadb"]


def doctor(*files: Path, json_: bool = False) -> Result:
    words = [word for file in files for word in ("-c", str(file))]
    return CliRunner().invoke(main, ["doctor", *words, *(["--json"] if json_ else [])])


def checks_of(file: Path) -> list[tuple[str, str, str]]:
    """Return (verdict, subject, text) of all that was looked at."""
    found = json.loads(doctor(file, json_=True).output)[str(file)]
    return [(check["verdict"], check["subject"], check["text"]) for check in found]


def problems_of(file: Path) -> str:
    """Return the lines of what is not ok."""
    return "\n".join(f"{v} {s}: {t}" for v, s, t in checks_of(file) if v != "ok")


def write_relay(folder: Path, *physical: dict[str, Any], **http: Any) -> Path:
    file = folder / "relay.toml"
    text = to_toml({"data_dir": str(folder / "data")}, {"port": 0, **http}, list(physical))
    file.write_text(text)
    return file


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path / "shop.db")
    yield made
    made.close()


@pytest.fixture(scope="module")
def unfit() -> Iterator[PrivateMariaDB]:
    """A server that logs as no relay can use it."""
    options: dict[str, str | int] = {
        "binlog-format": "MIXED",
        "binlog-row-image": "MINIMAL",
        "binlog-ignore-db": "hidden",
        "expire-logs-days": 0.5,  # type: ignore[dict-item]
    }
    with PrivateMariaDB(options=options) as server:
        yield server


def make_orders(database: Database) -> None:
    database.run("CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(20))")


def source_of(database: Database, folder: Path, **more: Any) -> dict[str, Any]:
    found = mysql_source(database, folder, sources=[f"{database.name}.orders"], **more)
    (folder / "password").chmod(0o600)
    return found


def test_an_sqlite_relay_that_can_start_is_all_well(
    tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tests may have their files in memory, of which the doctor warns.
    on_disk = replace(MACHINE, filesystem=lambda _: "ext4")
    monkeypatch.setattr("databus.relay.cli.doctor.MACHINE", on_disk)
    file = write_relay(tmp_path, shop.settings())
    result = doctor(file)
    assert result.exit_code == 0, result.output
    assert "has the tables of all 1 sources" in result.output
    assert "0 warnings, 0 errors" in result.output.splitlines()[-1]


def test_the_port_and_the_folder_of_a_pair_beside_the_relay_are_looked_at(
    tmp_path: Path, shop: Shop
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file = write_relay(tmp_path, shop.settings())
        pair = f"[bootstrap]\nport = {port}\nlog_retention_bytes = {1 << 60}\n"
        file.write_text(file.read_text() + pair)
        problems = problems_of(file)
    assert f"error bootstrap.port: 127.0.0.1:{port} is in use" in problems
    assert "choose another port (bootstrap.port)" in problems
    assert "bootstrap.data_dir" in problems
    file = write_relay(tmp_path, shop.settings())
    assert not [subject for _, subject, _ in checks_of(file) if "bootstrap" in subject]


def test_the_disk_of_a_relay_log_is_looked_at(tmp_path: Path, shop: Shop) -> None:
    log = {"dir": str(tmp_path / "log"), "retention_bytes": 1 << 60}
    file = write_relay(tmp_path, shop.settings(log=log))
    assert "may be needed for the relay log" in problems_of(file)
    assert doctor(file).exit_code == 0
    assert not (tmp_path / "log").exists()


def test_a_client_s_relays_are_those_that_its_coordinator_lists(tmp_path: Path, shop: Shop) -> None:
    coordinator = f"file:{tmp_path}/servers"
    client = tmp_path / "client.toml"
    client.write_text(f'coordinator = "{coordinator}"\ncheckpoint_dir = "{tmp_path}/kept"\n')
    assert "error coordinator: it lists no relay, and `relays` names none" in problems_of(client)
    assert doctor(client).exit_code == 1
    relay = RunningRelay(tmp_path, shop.settings(), coordinator=coordinator)
    with running(relay):
        relay.start()
        wait_until(lambda: "lists no relay" not in problems_of(client), "the relay to be listed")
        assert ("ok", "relays", f"{relay.url} answers, with 1 sources") in checks_of(client)
        assert doctor(client).exit_code == 0
        of_relay = [text for _, subject, text in checks_of(relay.file) if subject == "coordinator"]
        assert "can be read and written, and lists 1 servers: relay" in of_relay[0]


def test_what_patterns_match_is_said_and_one_that_matches_nothing_is_a_warning(
    tmp_path: Path, shop: Shop
) -> None:
    patterns = ["shop.*", "!shop.p*", "shop.none_*"]
    file = write_relay(tmp_path, shop.settings() | {"sources": patterns})
    found = [text for _, subject, text in checks_of(file) if subject == "source shop"]
    assert "patterns match 1 tables: shop.orders" in found
    assert "no table matches shop.none_* yet (sources)" in found


@pytest.mark.mariadb
def test_what_patterns_match_at_a_server_is_said(database: Database, tmp_path: Path) -> None:
    make_orders(database)
    patterns = [f"{database.name}.*", f"{database.name}_none.*"]
    file = write_relay(tmp_path, source_of(database, tmp_path) | {"sources": patterns})
    found = [text for _, _, text in checks_of(file)]
    assert f"patterns match 1 tables: {database.name}.orders" in found
    assert f"no table matches {database.name}_none.* yet (sources)" in found


def test_what_is_wrong_with_an_sqlite_source_is_said(tmp_path: Path, shop: Shop) -> None:
    file = write_relay(tmp_path, shop.settings(sources=["shop.orders", "shop.nothing"]))
    assert "no table for source shop.nothing" in problems_of(file)
    assert doctor(file).exit_code == 1
    file = write_relay(tmp_path, shop.settings(sources=["orders"]))
    assert doctor(file).exit_code == 0, "what stands before a dot may be left out"
    (tmp_path / "text").write_text("this is no database, however long it is" * 100)
    file = write_relay(tmp_path, shop.settings(uri=f"sqlite:{tmp_path}/text"))
    assert "is it an SQLite database" in problems_of(file)
    file = write_relay(tmp_path, shop.settings(uri=f"sqlite:{tmp_path}/nowhere.db"))
    assert "does not exist" in problems_of(file)


def test_sources_that_stock_clients_cannot_read_are_named(tmp_path: Path, shop: Shop) -> None:
    own = {"name": "shop.Orders", "table": "shop.orders"}
    file = write_relay(tmp_path, shop.settings(sources=[own]))
    assert "'shop.Orders' has two parts" in problems_of(file)
    assert [c[0] for c in checks_of(file) if c[1] == "source shop: sources"] == ["warning"]
    assert doctor(file).exit_code == 0
    pair = tmp_path / "bootstrap.toml"
    options = {"data_dir": "pair", "relays": ["http://127.0.0.1:1"]}
    pair.write_text(to_toml(options, {"port": 0}, [shop.settings()]))
    for file in (write_relay(tmp_path, shop.settings()), pair):
        (line,) = [t for _, subject, t in checks_of(file) if subject == "source shop: sources"]
        assert "stock Databus 2 clients cannot read shop.orders, whose names have two parts" in line
    file = write_relay(tmp_path, shop.settings(sources=["com.shop.orders"]))
    assert "'com.shop.orders' is read as the name of table 'shop.orders'" in problems_of(file)
    assert doctor(file).exit_code == 1, "there is no such table"


def test_settings_that_are_wrong_are_an_error_and_the_rest_is_looked_at(
    tmp_path: Path, shop: Shop
) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('data_dir = "x"\nphysical_sources = []\n')
    good = write_relay(tmp_path, shop.settings())
    result = doctor(wrong, good, tmp_path / "none.toml")
    assert result.exit_code == 1
    assert "physical_sources" in result.output
    assert "none.toml" in result.output
    assert "valid settings for a relay" in result.output


def test_without_a_file_those_of_the_folder_are_looked_at(
    tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no settings were checked" in doctor().output
    write_relay(tmp_path, shop.settings())
    assert "relay.toml: valid settings for a relay" in doctor().output


def test_a_relay_that_runs_is_recognized_and_a_stranger_on_its_port_is_an_error(
    tmp_path: Path, shop: Shop
) -> None:
    with running(RunningRelay(tmp_path / "r", shop.settings()).start()) as relay:
        (line,) = [c for c in checks_of(relay.file) if c[1] == "http.port"]
        assert (line[0], "runs and has it" in line[2]) == ("ok", True)
        other = write_relay(tmp_path, shop.settings(), port=relay.port)
        assert "is in use: relay listens there" in problems_of(other)


@pytest.mark.mariadb
def test_a_mariadb_that_is_fit_is_all_well(database: Database, tmp_path: Path) -> None:
    make_orders(database)
    file = write_relay(tmp_path, source_of(database, tmp_path))
    assert "binlog_row_metadata is NO_LOG" in problems_of(file)
    found = {subject: (verdict, text) for verdict, subject, text in checks_of(file)}
    assert doctor(file).exit_code == 0
    for what in ("login", "clock", "tables", "grants", "server", "start"):
        assert found[f"source shop: {what}"][0] == "ok", found
    assert "MariaDB 10." in found["source shop: server"][1]
    assert database.server.password not in doctor(file).output


@pytest.mark.mariadb
def test_each_thing_that_is_wrong_with_a_server_is_said_at_once(
    unfit: PrivateMariaDB, tmp_path: Path
) -> None:
    with fresh_database(unfit) as database:
        make_orders(database)
        database.run("CREATE DATABASE hidden", "CREATE TABLE hidden.x (id INT)")
        sources = [f"{database.name}.orders", "hidden.x", "hidden.gone"]
        options = {"sources": sources, "server_id": 1}
        file = write_relay(tmp_path, source_of(database, tmp_path) | options)
        said = problems_of(file)
    for text in (
        "binlog_format is MIXED, and must be ROW: SET GLOBAL binlog_format = 'ROW'",
        "binlog_row_image is MINIMAL, and must be FULL",
        "server_id 1 is the server's own",
        "hidden.x is not in the log: binlog_ignore_db",
        "table hidden.gone does not exist",
        "hidden.x has no primary key",
        "keeps its log for 12 h only",
    ):
        assert text in said, said


@pytest.mark.mariadb
def test_grants_that_are_missing_are_named(database: Database, tmp_path: Path) -> None:
    make_orders(database)
    table = f"{database.name}.orders"
    source = source_of(database, tmp_path) | {"uri": f"mysql://poor@{HOST}:{database.server.port}"}
    file = write_relay(tmp_path, source)
    database.run(f"CREATE OR REPLACE USER poor@'%' IDENTIFIED BY '{database.server.password}'")
    try:
        said = problems_of(file)
        assert f"table {table} does not exist, or the account may not see it" in said
        assert "BINLOG MONITOR" in said
        database.run(f"GRANT SELECT ON {table} TO poor@'%'", "GRANT BINLOG MONITOR ON *.* TO poor")
        said = problems_of(file)
        assert table not in said
        assert "source shop: grants" in said
        assert "REPLICATION SLAVE" in said
        database.run("GRANT REPLICATION SLAVE ON *.* TO poor@'%'")
        assert doctor(file).exit_code == 0, problems_of(file)
    finally:
        database.run("DROP USER poor@'%'")


@pytest.mark.mariadb
def test_a_login_that_is_refused_and_a_server_that_is_away_are_said(
    database: Database, tmp_path: Path
) -> None:
    make_orders(database)
    source = source_of(database, tmp_path)
    (tmp_path / "password").write_text("wrong")
    assert "check the user in uri, password_file" in problems_of(write_relay(tmp_path, source))
    (tmp_path / "password").chmod(0o644)
    away = source | {"uri": f"mysql://databus@{HOST}:9"}
    said = problems_of(write_relay(tmp_path, away))
    assert "connecting to databus@127.0.0.1:9" in said
    assert "password may be read by others: chmod 600" in said


@pytest.mark.mariadb
def test_an_id_that_another_replica_has_is_seen(database: Database, tmp_path: Path) -> None:
    make_orders(database)
    source = source_of(database, tmp_path, server_id=77)
    with running(RunningRelay(tmp_path / "r", source).start()) as relay:
        well = [c[2] for c in checks_of(relay.file) if c[1] == "source shop: server_id"]
        assert well == ["77 is used by this relay, which runs"]
        other = write_relay(tmp_path, source | {"name": "other"})
        assert "another replica uses server_id 77" in problems_of(other)


@pytest.mark.mariadb
def test_a_place_that_the_log_does_not_have_any_more_is_an_error(
    database: Database, tmp_path: Path
) -> None:
    make_orders(database)
    file = write_relay(tmp_path, source_of(database, tmp_path))
    (tmp_path / "data").mkdir()
    scn = BinlogPosition(0, 9_999, 400).to_scn()
    FileMaxScn(tmp_path / "data" / "shop.scn").save(scn, 0)
    assert "is not in the server's log any more" in problems_of(file)
    (tmp_path / "data" / "shop.scn").write_text("nonsense")
    assert "MaxSCN" in problems_of(file)


def test_max_scn_is_found_in_either_store_and_nothing_is_made(tmp_path: Path) -> None:
    for kind in ("file", "sqlite"):
        settings = MaxScnSettings.model_validate({"store": kind})
        assert saved_scn(settings, tmp_path, "shop") is None
    assert list(tmp_path.iterdir()) == []
    SqliteMaxScn(tmp_path / "max_scn.db", "shop").save(8, 0)
    assert saved_scn(MaxScnSettings(store="sqlite"), tmp_path, "shop") == 8


def test_a_client_is_told_which_of_its_servers_answer(tmp_path: Path) -> None:
    served = ServedRelay(tmp_path / "relay")
    try:
        file = tmp_path / "client.toml"
        file.write_text(f'relays = ["{served.url}"]\ncheckpoint_dir = "checkpoints"\n')
        assert doctor(file).exit_code == 0
        assert "bootstrap_servers: none" in problems_of(file)
        file.write_text(f'relays = ["http://127.0.0.1:9", "{served.url}"]\n')
        said = problems_of(file)
        assert "warning relays: http://127.0.0.1:9: does not answer" in said
        assert "checkpoint_dir: none" in said
        assert doctor(file).exit_code == 0
    finally:
        served.close()
    assert "error relays" in problems_of(file)
    assert doctor(file).exit_code == 1


def test_a_bootstrap_pair_needs_relays_that_have_its_sources(tmp_path: Path, shop: Shop) -> None:
    served = ServedRelay(tmp_path / "relay")
    file = tmp_path / "bootstrap.toml"
    options = {"data_dir": "pair", "relays": [served.url]}
    try:
        file.write_text(to_toml(options, {"port": 0}, [shop.settings()]))
        assert doctor(file).exit_code == 0, problems_of(file)
        source = shop.settings(sources=["shop.orders", "shop.unknown"])
        file.write_text(to_toml(options, {"port": 0}, [source]))
        assert f"{served.url} has no source shop.unknown" in problems_of(file)
    finally:
        served.close()


def test_tokens_and_hosts_of_a_server_are_looked_at(tmp_path: Path, shop: Shop) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("short\n")
    tokens.chmod(0o600)
    file = write_relay(tmp_path, shop.settings(), reader_tokens_file=str(tokens))
    assert "a token has 16 or more characters" in problems_of(file)
    file = write_relay(tmp_path, shop.settings(), host="0.0.0.0", open_to_all=True)
    said = problems_of(file)
    assert "anyone who reaches 0.0.0.0:0 can read all rows" in said
    assert "http.tls_cert" in said
