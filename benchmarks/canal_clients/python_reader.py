"""Consumes a destination with canal-python and prints what it acknowledges, as Reader.java.

Arguments: simple ADDRESS DESTINATION USER PASSWORD FILTER SIZE ROLLBACK_EVERY OUTSTANDING.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from typing import Any

from canal.client import Client
from canal.protocol import EntryProtocol_pb2 as entries


def show(*parts: Any) -> None:
    """Print a line."""
    print(json.dumps(parts), flush=True)


def rows_of(message: dict[str, Any]) -> list[Any]:
    """Return the rows of a batch."""
    found: list[Any] = []
    for entry in message["entries"]:
        if entry.entryType != entries.EntryType.ROWDATA:
            continue
        change = entries.RowChange()
        change.MergeFromString(entry.storeValue)
        table = f"{entry.header.schemaName}.{entry.header.tableName}"
        if change.isDdl:
            found.append(["DDL", table, change.sql])
        elif change.sql:
            found.append(["SQL", table, change.sql])
        kind = entries.EventType.Name(change.eventType)
        for row in change.rowDatas:
            columns = row.beforeColumns if kind == "DELETE" else row.afterColumns
            shown = [[c.name, None if c.isNull else c.value, c.sqlType] for c in columns]
            found.append([kind, table, shown])
    return found


def consume(*arguments: str) -> None:
    """Consume until the connection fails."""
    address, destination, user, password, filter_text, size, rollback_every = arguments
    every = int(rollback_every)
    host, _, port = address.rpartition(":")
    client = Client()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            client.connect(host=host, port=int(port))
            client.check_valid(user.encode(), password.encode())
            client.subscribe(b"1001", destination.encode(), filter_text.encode())
        received = 0
        while True:
            message = client.get_without_ack(int(size), 50, 2)
            if not message["id"]:
                continue
            received += 1
            if every and received % every == 0:
                client.rollback(message["id"])
                show("rolledBack")
                continue
            show("taken", message["id"], rows_of(message))
            client.ack(message["id"])
    finally:
        client.disconnect()


def main(*arguments: str) -> None:
    """Consume for ever."""
    while True:
        try:
            consume(*arguments)
        except Exception as error:
            show("error", repr(error))
        time.sleep(0.2)


if __name__ == "__main__":
    main(*sys.argv[2:9])
