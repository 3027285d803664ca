"""The private server: starts, survives a kill, and leaves nothing behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from databus.demo import private_mariadb
from databus.demo.private_mariadb import PrivateMariaDB
from databus.schemas.errors import SettingsError
from tests.mariadb_server import connect

pytestmark = pytest.mark.mariadb


def _one(server: PrivateMariaDB, query: str) -> object:
    connection = connect(server)
    try:
        with connection.cursor() as cursor:
            cursor.execute(query)
            row = cursor.fetchone()
            return row[0] if row else None
    finally:
        connection.close()


def test_rows_survive_a_kill_and_a_restart_on_the_same_port(tmp_path: Path) -> None:
    with PrivateMariaDB(tmp_path / "data", flush_log_at_commit=1) as server:
        port = server.port
        _one(server, "CREATE DATABASE d")
        _one(server, "CREATE TABLE d.t (a INT PRIMARY KEY)")
        _one(server, "INSERT INTO d.t VALUES (7)")
        server.restart(kill=True)
        assert (server.port, _one(server, "SELECT a FROM d.t")) == (port, 7)
        server.restart()
        assert _one(server, "SELECT a FROM d.t") == 7
    with PrivateMariaDB(tmp_path / "data") as again:
        assert _one(again, "SELECT a FROM d.t") == 7


def test_nothing_is_left_behind() -> None:
    with PrivateMariaDB() as server:
        pid, folder = server.pid, server.directory.parent
        assert pid is not None
        assert folder.is_dir()
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_row_format_and_chosen_options_are_set() -> None:
    with PrivateMariaDB(options={"binlog-checksum": "NONE"}, flush_log_at_commit=2) as server:
        assert _one(server, "SELECT @@binlog_format") == "ROW"
        assert _one(server, "SELECT @@binlog_checksum") == "NONE"
        assert _one(server, "SELECT @@innodb_flush_log_at_trx_commit") == 2


def test_a_missing_server_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_mariadb, "_SEARCH_PATH", "/nonexistent")
    with pytest.raises(SettingsError, match="apt install mariadb-server"), PrivateMariaDB():
        pass


def test_root_cannot_log_in_over_the_network() -> None:
    with PrivateMariaDB() as server:
        server_user, server.user = server.user, "root"
        password, server.password = server.password, ""
        with pytest.raises(Exception, match="Access denied"):
            connect(server)
        server.user, server.password = server_user, password
        assert _one(server, "SELECT CURRENT_USER()") == f"{server.user}@%"
