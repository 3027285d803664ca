"""Schemas as former versions of this project wrote them, by rules of the tests alone."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from hashlib import md5
from pathlib import Path
from typing import Any

from databus.registry.store import SqliteStore
from databus.schemas.avro_rows import schema_id


def former_text(text: str, before: str | None = None) -> str:
    """Return the text that a former version had; its change names the shape `before`."""
    record = json.loads(text)
    columns = []
    for field in record["fields"]:
        members = dict(member.split("=", 1) for member in field["meta"].rstrip(";").split(";"))
        meta: dict[str, Any] = {"column": members["column"], "position": int(members["position"])}
        meta |= {"sqlType": members["sqlType"]}
        if "key" in members:
            meta |= {"key": int(members["key"])}
        columns.append({**field, "meta": meta})
    members = dict(member.split("=", 1) for member in record["meta"].rstrip(";").split(";"))
    table: dict[str, Any] = {"source": members["source"], "dialect": members["dialect"]}
    table |= {"key": members["key"].split(",")}
    if before is not None:
        table |= {"change": {**json.loads(members["change"]), "before": before}}
    return json.dumps({**record, "fields": columns, "meta": table}, separators=(",", ":"))


def former_shape(text: str) -> str:
    """Return the id that a former version gave the shape of its text."""
    record = json.loads(text)
    record["meta"].pop("change", None)
    return md5(json.dumps(record, separators=(",", ":")).encode()).hexdigest()


def make_store_former(path: Path) -> dict[bytes, bytes]:
    """Turn a schema store into that of a former version; return the former ids by those of now."""
    store = SqliteStore(path)
    sources, versions = store.load_sources(), store.load_versions()
    for file in (store.path, store.copy_path):
        file.unlink()
    for name, src_id in sources.items():
        store.save_sources({name: src_id})
    ids = {}
    for version in versions:
        text = former_text(version.text)
        ids[schema_id(version.text)] = md5(text.encode()).digest()
        store.save_versions([version._replace(text=text)])
    for file in (store.path, store.copy_path):
        with closing(sqlite3.connect(file)) as database, database:
            database.execute("pragma user_version = 1")
    return ids
