"""Opens stores of leases and records by URL.

file:/var/lib/databus                       processes of one machine
mysql://user:password@host/databus          any URL of SQLAlchemy
zookeeper://host:2181,host:2181/databus     ZooKeeper
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from databus.conf.extras import how_to_install
from databus.leases.file_records import FileRecords
from databus.leases.records import Records
from databus.leases.store import LeaseStore
from databus.schemas.errors import SettingsError

_FILE = "file:"
_ZOOKEEPER = "zookeeper://"


def open_leases(url: str) -> LeaseStore:
    """Return the leases at a URL; `close` them. Raises SettingsError."""
    return LeaseStore(open_records(url))


def open_records(url: str) -> Records:
    """Return the records at a URL; `close` them. Raises SettingsError."""
    if url.startswith(_FILE):
        folder = url.removeprefix(_FILE).removeprefix("//")
        if not folder:
            raise SettingsError(f"{url!r}: give file:FOLDER")
        return FileRecords(Path(folder))
    if is_zookeeper(url):
        zookeeper: Records = open_kind("databus.leases.zookeeper_records", "ZookeeperRecords", url)
        return zookeeper
    if "://" in url:
        sql: Records = open_kind("databus.leases.sql_records", "SqlRecords", url)
        return sql
    raise SettingsError(f"{url!r}: give file:FOLDER, zookeeper://HOST:PORT or a URL of SQLAlchemy")


def is_zookeeper(url: str) -> bool:
    """Return whether a URL is ZooKeeper's."""
    return url.startswith(_ZOOKEEPER)


def open_kind(module: str, name: str, url: str) -> Any:
    """Return a new object of a module's class, made with a URL; raise SettingsError.

    The module is imported only where it is used: its library is an extra.
    """
    try:
        kind = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        text = f"{error}: {how_to_install('cluster')}"
        raise SettingsError(text) from error
    try:
        return kind(url)
    except ValueError as error:  # a port that is no number, for example
        raise SettingsError(f"{url.partition('://')[0]}:// is no usable URL: {error}") from None
