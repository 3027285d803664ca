"""A real MySQL in tests: a private server, like the demo's MariaDB but for its first start.

The fixtures that give it are in `tests/mysql.py`; where its programs come from
is in `tools/fetch_test_servers.py`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from databus.demo.private_mariadb import HOST, PrivateMariaDB
from databus.schemas.errors import SourceUnavailableError
from tools.fetch_test_servers import MYSQL

_FILE_SIZES = ("innodb-buffer-pool-size", "innodb-doublewrite", "innodb-redo-log-capacity")


class PrivateMySQL(PrivateMariaDB):
    """One MySQL server process with GTIDs, and its files; a context manager.

    It begins with a copy of `template`, a data folder that `initialize` made: to
    make one takes longer than all the rest of a start.
    """

    defaults: ClassVar[Mapping[str, str | int]] = {
        "bind-address": HOST,
        "binlog-format": "ROW",
        "enforce-gtid-consistency": "ON",
        "gtid-mode": "ON",
        "innodb-buffer-pool-size": "16M",
        "innodb-doublewrite": "OFF",
        "innodb-redo-log-capacity": "16M",
        "log-bin": "binlog",
        "mysqlx": "OFF",
        "performance-schema": "OFF",
        "secure-file-priv": "NULL",
        "server-id": 1,
        "skip-name-resolve": "ON",
        "sync-binlog": 0,
    }

    def __init__(
        self, basedir: Path, template: Path, *, options: Mapping[str, str | int] | None = None
    ) -> None:
        super().__init__(basedir=basedir, options=options)
        self._template = template

    def _find_server(self) -> str:
        return str(Path(str(self.basedir), MYSQL.program))

    def _install(self) -> None:
        if not self.directory.exists():
            shutil.copytree(self._template, self.directory)

    def _account_sql(self) -> str:
        return (
            "SET sql_log_bin = 0;\n"
            f"CREATE USER IF NOT EXISTS '{self.user}'@'%' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL PRIVILEGES ON *.* TO '{self.user}'@'%' WITH GRANT OPTION;\n"
        )


def initialize(basedir: Path, folder: Path) -> None:
    """Make a data folder with the server's own tables, and root without a password."""
    command = [
        str(basedir / MYSQL.program),
        "--no-defaults",
        f"--basedir={basedir}",
        "--initialize-insecure",
        f"--datadir={folder}",
        # The first start is to write the first file of the log.
        "--disable-log-bin",
        *(f"--{name}={PrivateMySQL.defaults[name]}" for name in _FILE_SIZES),
        *(["--user=root"] if os.geteuid() == 0 else []),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = " ".join(done.stderr.strip().splitlines()[-5:])
        raise SourceUnavailableError(f"mysqld --initialize-insecure failed: {tail}")
    # Else all servers that begin with a copy would have the same UUID.
    (folder / "auto.cnf").unlink()


def mysql_basedir() -> Path | None:
    """Return the folder of the MySQL to test with; None when it has not been fetched.

    DATABUS_TEST_MYSQL names another one than the one that is fetched.
    """
    named = os.environ.get("DATABUS_TEST_MYSQL")
    return Path(named) if named else MYSQL.find()
