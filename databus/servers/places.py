"""Opens the list of servers in a store by its URL, which is one of `databus/leases/places.py`."""

from __future__ import annotations

from databus.leases.places import is_zookeeper, open_kind, open_records
from databus.servers.directory import ServerDirectory
from databus.servers.record_directory import RecordDirectory


def open_directory(url: str) -> ServerDirectory:
    """Return the list of servers at a URL; `close` it. Raises SettingsError."""
    if is_zookeeper(url):
        found: ServerDirectory = open_kind(
            "databus.servers.zookeeper_directory", "ZookeeperDirectory", url
        )
        return found
    return RecordDirectory(open_records(url))
