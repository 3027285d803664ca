"""A relay of MariaDB that is killed: what its clients have been sent is a place in the log."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ptubes_clients.sdk import StockSdk, compiled
from databus.demo.processes import free_port
from databus.relay.serving.ptubes.places import NO_UUID
from databus.relay.serving.ptubes.rows.java_hashes import partition_id
from tests import PATIENCE_S
from tests.mariadb_server import Database
from tests.promises.running import RunningRelay, mysql_source, running
from tests.promises.stock_ptubes.waiting import wait_for_notes
from tests.relay.fakes import wait_until
from tests.relay.serving.ptubes.stock import Sent, StockClient
from tests.zookeeper_server import PrivateZookeeper

NOTHING = {"uuid": NO_UUID, "transactionId": 0}
pytestmark = pytest.mark.mariadb


def relay_of(database: Database, folder: Path) -> tuple[RunningRelay, int, int]:
    """Return a relay, and its ports for Ptubes' clients and for monitoring."""
    port, monitor_port = free_port(), free_port()
    ptubes = {
        "port": port,
        "monitor_port": monitor_port,
        "time_zone": "UTC",
        "heartbeat_s": 0.5,
        "reader_tasks": [{"name": "reader", "physical_source": "shop"}],
    }
    return RunningRelay(folder, mysql_source(database, folder), ptubes=ptubes), port, monitor_port


def test_rows_are_divided_by_keys_of_dates_numbers_and_bytes(
    database: Database, tmp_path: Path
) -> None:
    columns = {"day": "DATE", "ratio": "DOUBLE", "raw": "VARBINARY(8)", "price": "DECIMAL(8,2)"}
    values: dict[str, tuple[str, str | bytes]] = {
        "day": ("'2020-02-29'", "2020-02-29"),
        "ratio": ("2.5", "2.5"),
        "raw": ("x'ff00'", b"\xff\x00"),
        "price": ("1.50", "1.50"),
    }
    for name, sql_type in columns.items():
        database.run(f"CREATE TABLE by_{name} ({name} {sql_type} PRIMARY KEY)")
    tables = [f"{database.name}.by_{name}" for name in columns]
    port = free_port()
    task = {"name": "reader", "physical_source": "shop"}
    ptubes = {"port": port, "monitor_port": free_port(), "reader_tasks": [task]}
    source = mysql_source(database, tmp_path, sources=tables)
    with running(RunningRelay(tmp_path, source, ptubes=ptubes)) as relay:
        relay.start()
        for name, (literal, _) in values.items():
            database.run(f"INSERT INTO by_{name} VALUES ({literal})")
        with StockClient(port) as client:
            # So many that a row's partition is its id.
            assert client.subscribe(tables=tables, partitions=32767) == "success"
            found = {event.table: event.partition for event in client.fetch_rows(4)}
    assert found == {
        f"{database.name}.by_{name}": partition_id(key) for name, (_, key) in values.items()
    }


def test_a_statement_that_was_logged_without_rows_is_a_query_among_the_rows(
    database: Database, tmp_path: Path
) -> None:
    port = free_port()
    task = {"name": "reader", "physical_source": "shop"}
    ptubes = {"port": port, "monitor_port": free_port(), "reader_tasks": [task]}
    source = mysql_source(database, tmp_path, on_statement="deliver")
    table = f"{database.name}.orders"
    update = "UPDATE orders SET note = 'changed'"
    with running(RunningRelay(tmp_path, source, ptubes=ptubes)) as relay:
        relay.start()
        orders(database, 1, 2)
        database.run("SET binlog_format = STATEMENT", update, "SET binlog_format = ROW")
        orders(database, 3, 2)
        for wants_statements, expected in (
            (True, [(1, ""), (1, ""), (7, update), (1, ""), (1, "")]),
            (False, [(1, "")] * 4),
        ):
            with StockClient(port) as client:
                asked = {"tables": [table], "partitions": 1, "ddl": wants_statements}
                assert client.subscribe(**asked) == "success"
                events = client.fetch_rows(len(expected) + wants_statements)
            shown = [(one.event_type, one.sql) for one in events if not one.is_ddl]
            assert shown == expected


@pytest.mark.parametrize("is_old", [False, True])
def test_no_place_is_resumed_on_a_log_that_was_begun_anew(
    database: Database, tmp_path: Path, is_old: bool
) -> None:
    relay, port, _ = relay_of(database, tmp_path)
    asked: dict[str, Any] = {"tables": [f"{database.name}.orders"], "partitions": 1}
    database.run("RESET MASTER")
    with running(relay):
        relay.start()
        orders(database, 1000, 20)
        with StockClient(port) as client:
            assert client.subscribe(**asked, commits=True) == "success"
            found = [event.checkpoint for event in client.fetch_rows(30)]
            beat = client.fetch(wait_ms=1000).latest
        if is_old:  # what relays wrote before
            found = [one | ({} if one["eventIndex"] >= 0 else NOTHING) for one in found]
            found = [one | {"uuid": NO_UUID} for one in found]
            beat |= NOTHING
        relay.child.kill()
        database.run("RESET MASTER")
        shutil.rmtree(relay.data_dir)
        relay.start()
        places = [*found, beat]
        orders(database, 1, 100)
        assert all("another log" in refusal(port, asked, one) for one in places)
        database.run(*["FLUSH LOGS"] * 4)
        notes = orders(database, 201, 100)
        wait_until(lambda: note_of_newest(port, asked) == notes[-1])
        for place in places:
            text = refusal(port, asked, place)
            if text:
                assert "another log" in text
                assert "EARLIEST" in text
                continue
            # Nothing proves where it is from: then nothing is left out.
            assert is_old
            assert place["eventIndex"] < 0
            with StockClient(port) as client:
                assert client.subscribe(**asked, checkpoint=place) == "success"
                assert len(client.fetch_rows(200)) == 200


def refusal(port: int, asked: dict[str, Any], place: dict[str, Any]) -> str:
    with StockClient(port) as client:
        return str(client.server_info(**asked, checkpoint=place).get("errorMessage", ""))


def note_of_newest(port: int, asked: dict[str, Any]) -> str | None:
    with StockClient(port) as client:
        assert client.subscribe(**asked) == "success"
        return client.fetch().events[-1].after["note"]


def orders(database: Database, first: int, count: int) -> list[str]:
    """Insert orders, two in each transaction; return their notes."""
    notes = [f"order {number}" for number in range(first, first + count)]
    for at in range(0, count, 2):
        rows = ", ".join(f"({first + i}, '{notes[i]}', 1.5)" for i in range(at, min(at + 2, count)))
        database.run(f"INSERT INTO orders VALUES {rows}")
    return notes


def row_of(event: Sent) -> tuple[int, str | None, str | None]:
    return event.event_type, event.before.get("note"), event.after.get("note")


def test_each_place_is_exact_over_kills_of_the_relay(database: Database, tmp_path: Path) -> None:
    tables = (f"{database.name}.orders", f"{database.name}.people")
    relay, port, _ = relay_of(database, tmp_path)
    asked: dict[str, Any] = {"tables": tables, "partitions": 1, "ddl": True, "commits": True}
    with running(relay):
        relay.start()
        notes = orders(database, 1, 4)
        database.run(
            "UPDATE orders SET note = 'changed' WHERE id = 1",
            "DELETE FROM orders WHERE id = 2",
            "ALTER TABLE orders ADD extra INT",
            "INSERT INTO people VALUES ('Ada', 'GB', '1815-12-10')",
            "INSERT INTO orders VALUES (9, 'last', 2.5, 7)",
        )
        with StockClient(port) as client:
            assert client.subscribe(**asked) == "success"
            sent = client.fetch_rows(17)
        relay.child.kill()
        relay.start()
        assert [row_of(event) for event in sent if event.event_type in (1, 2, 3)] == [
            *((1, None, note) for note in notes),
            (2, notes[0], "changed"),
            (3, notes[1], None),
            (1, None, None),
            (1, None, "last"),
        ]
        statements = [event.sql for event in sent if event.event_type == 7]
        assert [one.split()[0] for one in statements] == ["CREATE", "CREATE", "ALTER"]
        (person,) = [one for one in sent if (one.event_type, one.table) == (1, tables[1])]
        assert person.after == {"name": "Ada", "land": "GB", "born": "-4861728000000"}
        for at, event in enumerate(sent):
            with StockClient(port) as client:
                place = event.checkpoint
                answer = client.server_info(**asked, checkpoint=place)
                assert answer["serverStatus"] == "AVAILABLE", answer
                assert client.subscribe(**asked, checkpoint=place) == "success"
                rest = [one for one in sent[at + 1 :] if one.event_type != 7]
                found = client.fetch_rows(len(rest))
                assert [one.checkpoint for one in found if one.event_type != 7] == [
                    one.checkpoint for one in rest
                ][: len(found)]


@pytest.mark.ptubes_sdk
def test_the_stock_client_loses_nothing_when_the_relay_is_killed(
    database: Database, tmp_path: Path
) -> None:
    (tmp_path / "classes").mkdir()
    class_path = compiled(tmp_path / "classes")
    relay, port, monitor_port = relay_of(database, tmp_path)
    with running(relay), PrivateZookeeper() as zookeeper:
        relay.start()
        address = f"127.0.0.1:{zookeeper.port}"
        table = f"{database.name}.orders"
        client = StockSdk(class_path, address, f"127.0.0.1:{port}", tmp_path / "sdk", table)
        with client:
            wait_until(lambda: _owned(monitor_port) == 11, PATIENCE_S)
            # Until it has a row it begins with what is latest, at each of its subscriptions.
            for number in range(1000, 1060):
                orders(database, number, 1)
                with contextlib.suppress(AssertionError):
                    wait_until(lambda: bool(client.notes), 2)
                    break
            wanted = set(orders(database, 10, 200))
            relay.child.kill()
            wanted |= set(orders(database, 300, 100))
            relay.start()
            wanted |= set(orders(database, 500, 100))
            wait_for_notes(wanted, client)


def _owned(monitor_port: int) -> int:
    """Return how many partitions the clients have."""
    with StockClient(monitor_port) as monitor:
        sessions = json.loads(monitor.ask("/v1/clientSessionInfo"))
    return sum(len(one["partitionSet"]) for one in sessions)
