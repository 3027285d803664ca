"""Private database servers for attacks, each copied from a template, as most attacks ruin them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from databus.demo.private_mariadb import PrivateMariaDB
from databus.schemas.errors import SettingsError
from tests.mysql_server import PrivateMySQL, initialize, mysql_basedir

Kind = Literal["mariadb", "mysql", "sqlite"]
KINDS: tuple[Kind, ...] = ("mariadb", "mysql", "sqlite")
Options = Mapping[str, str | int]

_OPTIONS: Options = {
    # A killed server keeps acknowledged commits.
    "innodb-flush-log-at-trx-commit": 2,
    # Otherwise statement texts vary with the length of numbers; MySQL lacks this setting.
    "loose-binlog-annotate-row-events": "OFF",
}


class Servers:
    """Makes servers; their templates are made once, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def make(self, kind: Kind, directory: Path, options: Options) -> PrivateMariaDB:
        """Return a server of a kind that is not started; its data come into `directory`."""
        found = {**_OPTIONS, **options}
        if kind == "mysql":
            basedir = mysql_basedir()
            if basedir is None:
                raise SettingsError("no MySQL here: python -m tools.fetch_test_servers")
            server = PrivateMySQL(basedir, self._mysql_template(basedir), options=found)
            server.directory = directory
            return server
        shutil.copytree(self._mariadb_template(), directory)
        return PrivateMariaDB(directory, options=found)

    def _mysql_template(self, basedir: Path) -> Path:
        folder = self._folder / "mysql"
        if not folder.exists():
            initialize(basedir, folder)
        return folder

    def _mariadb_template(self) -> Path:
        folder = self._folder / "mariadb"
        if not folder.exists():
            with PrivateMariaDB(folder):
                pass
            # Each server begins a log of its own.
            for file in folder.glob("binlog.*"):
                file.unlink()
        return folder


class SavedData:
    """A backup of a server's data; the server is stopped while it is made."""

    def __init__(self, server: PrivateMariaDB, folder: Path) -> None:
        self._server = server
        self._folder = folder
        server.stop()
        shutil.copytree(server.directory, folder)
        server.start()

    def restore(self) -> None:
        """Restore the data, and start the server on them."""
        self._server.kill()
        shutil.rmtree(self._server.directory)
        shutil.copytree(self._folder, self._server.directory)
        self._server.start()
