"""Errors about tables with protected columns, and scans of them, on a real server."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from databus.conf.settings import PhysicalSourceSettings
from databus.relay.sources.kind import open_scan, read_columns
from databus.schemas.errors import SourceStoppedError
from tests.mariadb_server import Database
from tests.relay.sources.mysql.reading import opened, read_until, watching

pytest_plugins = ["tests.mariadb"]

pytestmark = pytest.mark.mariadb

SECRET = "s3cr3t"


def settings_of(database: Database, folder: Path, **columns: Any) -> PhysicalSourceSettings:
    key = folder / "key"
    key.write_text("a key of enough characters")
    key.chmod(0o600)
    entry = {"tables": [f"{database.name}.users"], **columns}
    return watching(database, folder, "users", columns=[entry], mask_key_file=key)


@pytest.mark.parametrize("sql_type", ["DATE", "JSON"])
def test_no_error_about_a_value_has_a_value_or_key_in_it(
    database: Database, tmp_path: Path, sql_type: str
) -> None:
    database.run(f"CREATE TABLE users (email VARCHAR(40) PRIMARY KEY, born {sql_type})")
    settings = settings_of(database, tmp_path, mask={"email": "hash", "born": "redact"})
    value = "'0000-00-00'"
    if sql_type == "JSON":
        database.run("ALTER TABLE users MODIFY born TIMESTAMP NULL, ADD seen DATE")
        value = "NULL, '0000-00-00'"
    with opened(settings) as source:
        database.run("SET sql_mode = ''", f"INSERT INTO users VALUES ('{SECRET}', {value})")
        with pytest.raises(SourceStoppedError, match="its value cannot be read") as stopped:
            read_until(source, lambda _: False)
    assert SECRET not in str(stopped.value)
    assert "0000-00-00 " not in str(stopped.value)
    with closing(open_scan(settings)) as scan:
        scan.open()
        with pytest.raises(SourceStoppedError, match="its value cannot be read") as stopped:
            [list(chunk.rows) for chunk in scan.chunks(settings.source_names[0], 10)]
    assert SECRET not in str(stopped.value)


def test_a_scan_of_a_masked_key_keeps_no_place_with_a_value_in_it(
    database: Database, tmp_path: Path
) -> None:
    database.run("CREATE TABLE users (email VARCHAR(40) PRIMARY KEY, n INT, note TEXT)")
    database.run(*(f"INSERT INTO users VALUES ('{SECRET}{n}', {n}, 'x')" for n in range(9)))
    masked = settings_of(database, tmp_path, mask={"email": "hash"}, exclude=["note"])
    plain_key = settings_of(database, tmp_path, mask={"n": "hash"})
    (name,) = masked.source_names
    with closing(open_scan(masked)) as scan:
        scan.open()
        chunks = list(scan.chunks(name, 4))
        assert [chunk.resume for chunk in chunks] == ["", "", None]
        rows = [row for chunk in chunks for row in chunk.rows]
        assert len({row["email"] for row in rows}) == 9
        assert {frozenset(row) for row in rows} == {frozenset(("email", "n"))}
        assert SECRET not in str(rows)
        assert (scan.is_chunked(name), scan.key_range(name)) == (False, None)
        assert scan.table(name) == read_columns(masked, name) == chunks[0].table
    with closing(open_scan(plain_key)) as scan:
        scan.open()
        assert scan.is_chunked(name)
        assert SECRET.encode().hex() in str(next(iter(scan.chunks(name, 4))).resume)
