"""Entries as dicts: Canal's own, from its parser, and ours of the same log."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from databus.conf.settings import PhysicalSourceSettings
from databus.demo.private_mariadb import HOST, PrivateMariaDB
from databus.registry.registry import SchemaRegistry
from databus.registry.store import MemoryStore
from databus.relay.capture.window_encoder import WindowEncoder
from databus.relay.serving.canal.entries import Entry, EntryWriter
from databus.relay.serving.protobuf import Value, read_fields, signed
from databus.relay.sources.mysql.source import MysqlSource
from databus.schemas.windows import EmptyWindow, WindowBatch
from tests import PATIENCE_S

SOURCE = Path(__file__).parent / "java" / "Entries.java"
ZONE = "America/New_York"
_ENTRY_NAMES = {1: "header", 2: "entryType", 3: "storeValue"}
_HEADER_NAMES = {
    **{1: "version", 2: "logfileName", 3: "logfileOffset", 4: "serverId", 5: "serverenCode"},
    **{6: "executeTime", 7: "sourceType", 8: "schemaName", 9: "tableName", 10: "eventLength"},
    **{11: "eventType", 12: "props", 13: "gtid"},
}
_CHANGE_NAMES = {
    **{1: "tableId", 2: "eventType", 10: "isDdl", 11: "sql", 12: "rowDatas"},
    **{13: "props", 14: "ddlSchemaName"},
}
_COLUMN_NAMES = {
    **{1: "index", 2: "sqlType", 3: "name", 4: "isKey", 5: "updated", 6: "isNull"},
    **{7: "props", 8: "value", 9: "length", 10: "mysqlType"},
}
BEGIN, ROWS, END = 1, 2, 3

Column = dict[str, Any]


class Row(NamedTuple):
    """One row of an entry: columns by name, of the row before and after."""

    table: str
    kind: int
    before: dict[str, Column]
    after: dict[str, Column]


class Place(NamedTuple):
    """Where the server's log ends."""

    file: str
    offset: int


def place_of(database: Any) -> Place:
    """Return the end of a server's log."""
    file, offset, *_ = database.run("SHOW MASTER STATUS")[0]
    return Place(str(file), int(offset))


def compile_reader(archives: Path, folder: Path) -> list[str]:
    """Compile the program; return its command."""
    path = f"{archives}/*"
    done = subprocess.run(
        ["javac", "-nowarn", "-cp", path, "-d", str(folder), str(SOURCE)],
        capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return ["java", f"-Duser.timezone={ZONE}", "-Dfile.encoding=UTF-8", "-cp",
            f"{folder}:{path}", "Entries"]  # fmt: skip


def entries_of_canal(
    command: list[str], server: PrivateMariaDB, begin: Place, end: Place, tables: str, folder: Path
) -> list[bytes]:
    """Return the entries that Canal's parser makes of a stretch of the log."""
    arguments = [HOST, str(server.port), server.user, server.password, begin.file,
                 str(begin.offset), tables, str(end.offset)]  # fmt: skip
    done = subprocess.run(
        [*command, *arguments],
        cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if " " not in line and line]
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return [base64.b64decode(line) for line in lines]


class Capture:
    """Captures tables of a server from now on, and builds entries of what it reads."""

    def __init__(self, settings: PhysicalSourceSettings) -> None:
        self._source = MysqlSource(settings)
        registry = SchemaRegistry(MemoryStore())
        names = dict(enumerate(settings.source_names, 1))
        for number, name in names.items():
            registry.add_source(name, number)
        encoder = WindowEncoder(registry, {name: number for number, name in names.items()})
        self._source.write_with(encoder)
        self._source.open(None)
        for table in self._source.tables():
            encoder.publish_first([table])
        self.writer = EntryWriter(registry.text_of, names.__getitem__, ZoneInfo(ZONE))
        self.bodies: list[bytes] = []

    def read_to(self, end: Place) -> list[Entry]:
        """Return the entries of all windows up to a place of the log."""
        found: list[Entry] = []
        for _ in range(1000):
            for captured in self._source.read():
                if isinstance(captured, EmptyWindow):
                    if captured.scn & 0xFFFFFFFF >= end.offset:
                        return found
                    continue
                assert isinstance(captured, WindowBatch)
                self.bodies.append(captured.data)
                found += self.writer.entries(captured.data)
                if found and found[-1].scn & 0xFFFFFFFF >= end.offset:
                    return found
        raise AssertionError(f"the log does not reach {end}")

    def close(self) -> None:
        """Close the source."""
        self._source.close()


def header_of(entry: bytes) -> dict[str, Any]:
    """Return an entry's header, its type as `entryType`."""
    fields = dict(read_fields(entry))
    header = _named(_bytes(fields[1]), _HEADER_NAMES, {"props"})
    return header | {"entryType": fields.get(2, ROWS)}


def change_of(entry: bytes) -> dict[str, Any]:
    """Return an entry's row change."""
    return _named(_bytes(dict(read_fields(entry))[3]), _CHANGE_NAMES, {"rowDatas", "props"})


def rows_of(entries: list[bytes]) -> list[Row]:
    """Return all rows of entries."""
    found = []
    for entry in entries:
        header = header_of(entry)
        if header["entryType"] == ROWS:
            table = f"{header['schemaName']}.{header['tableName']}"
            change = change_of(entry)
            found += [_row(table, change["eventType"], data) for data in change.get("rowDatas", ())]
    return found


def _row(table: str, kind: int, data: bytes) -> Row:
    images: dict[int, dict[str, Column]] = {1: {}, 2: {}}
    for number, value in read_fields(data):
        column = _named(_bytes(value), _COLUMN_NAMES, {"props"})
        images[number][column["name"]] = column
    return Row(table, kind, images[1], images[2])


def _named(data: bytes, names: dict[int, str], repeated: set[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, value in read_fields(data):
        name = names[number]
        if name in repeated:
            found.setdefault(name, []).append(value)
        else:
            found[name] = _plain(value)
    return found


def _plain(value: Value) -> str | int:
    return signed(value) if isinstance(value, int) else value.decode()


def _bytes(value: Value) -> bytes:
    assert isinstance(value, bytes)
    return value
