"""The sink `files`: whole windows, once, whatever happens between its writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from databus.client.sinks.contract import Opening, Position
from databus.client.sinks.errors import SinkError, SinkRefusedError
from databus.client.sinks.loading import sink_maker
from databus.client.sinks.running.feed import Feed, SinkState
from databus.client.sinks.running.plan import make_plan
from databus.conf.loading import build_settings
from databus.conf.sink_settings import SinkSettings
from databus.relay.log.archive.store import ArchiveStore
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import SettingsError
from tests import PATIENCE_S
from tests.client.sinks.changes import ListedStream, made, mysql_schema, window
from tests.client.sinks.ready.files_sinks import change, closed, entries, read, sink

HOUR_NS = 3600 * 10**9

__all__ = ["closed"]


def test_a_flush_is_an_entry_with_files_by_source_and_hour(tmp_path: Path) -> None:
    files = sink(tmp_path)
    assert files.open(Opening("test", "shop")) is None
    files.write([change(1), change(2, "people"), change(3, at_ns=HOUR_NS)])
    assert files.flush() == Position("shop", Checkpoint.at(3))
    (entry,) = entries(tmp_path)
    assert (entry["firstScn"], entry["lastScn"], entry["rows"]) == (1, 3, 3)
    assert [(one["source"], one["hour"], one["rows"]) for one in entry["files"]] == [
        ("shop.orders", "1970-01-01T00", 1),
        ("shop.people", "1970-01-01T00", 1),
        ("shop.orders", "1970-01-01T01", 1),
    ]
    for file in entry["files"]:
        path = tmp_path / file["path"]
        assert path.stat().st_size == file["bytes"]
        assert path.stat().st_mode & 0o077 == 0


def test_a_flush_of_nothing_writes_no_entry(tmp_path: Path) -> None:
    files = sink(tmp_path)
    files.open(Opening("test", "shop"))
    assert files.flush() is None
    assert entries(tmp_path) == []
    assert list(tmp_path.glob("source=*")) == []


def test_the_next_run_has_the_position_of_the_newest_entry(tmp_path: Path) -> None:
    first = sink(tmp_path)
    first.open(Opening("test", "shop"))
    for scn in (1, 2):
        first.write([change(scn)])
        first.flush()
    first.write([change(3)])
    first.close()  # without a flush
    again = sink(tmp_path)
    assert again.open(Opening("test", "shop", Position("shop", Checkpoint.at(1)))) == Position(
        "shop", Checkpoint.at(2)
    )
    again.write([change(3)])
    again.flush()
    assert read(tmp_path) == [1, 2, 3]


class CrashError(Exception):
    pass


@pytest.mark.parametrize("after", range(6))
def test_a_crash_between_any_two_writes_leaves_every_window_once(
    tmp_path: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = sink(tmp_path)
    files.open(Opening("test", "shop"))
    files.write([change(1)])
    files.flush()
    write, left = ArchiveStore.write, [after]

    def crashing(store: ArchiveStore, path: str, chunks: Sequence[bytes]) -> None:
        if not left[0]:
            raise CrashError
        left[0] -= 1
        write(store, path, chunks)

    monkeypatch.setattr(ArchiveStore, "write", crashing)
    lost = False
    try:
        files.write([change(2), change(2, "people"), change(3)])
        files.flush()
    except CrashError:
        lost = True
    monkeypatch.undo()
    files.close()
    again = sink(tmp_path)
    own = again.open(Opening("test", "shop"))
    assert own is not None
    assert own.scn == (1 if lost else 3)
    rest = [
        one for one in (change(2), change(2, "people"), change(3), change(4)) if one.scn > own.scn
    ]
    for one in rest:  # cut otherwise than before
        again.write([one])
        again.flush()
    assert sorted(read(tmp_path)) == [1, 2, 2, 3, 4]
    listed = {file["path"] for entry in entries(tmp_path) for file in entry["files"]}
    there = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("source=*/*/*")}
    assert there == listed  # and no file is left over
    assert lost is (after < 4)


def test_a_source_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    files = sink(tmp_path / "in")
    files.open(Opening("test", "shop"))
    files.write([replace(change(1), source="../../out/x")])
    files.flush()
    assert [one.name for one in tmp_path.iterdir()] == ["in"]


def test_a_damaged_entry_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "_manifest").mkdir()
    (tmp_path / "_manifest" / f"{1:020}.json").write_text("{")
    with pytest.raises(SinkError, match="no entry of a manifest"):
        sink(tmp_path).open(Opening("test", "shop"))


def test_parquet_has_the_columns_of_the_row_with_lasting_types(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "n": 1,
        "d": Decimal("1.50"),
        "f": 0.5,
        "b": b"x",
        "day": date(2026, 11, 28),
        "at": datetime(2026, 11, 28, 23, tzinfo=UTC),
        "local": datetime(2026, 11, 28, 23),
        "span": timedelta(hours=-1),
        "yes": True,
        "empty": None,
    }
    files = sink(tmp_path, "parquet")
    files.open(Opening("test", "shop"))
    files.write(
        [change(1, **values), change(2, n=None, d=Decimal("2.25")), made("delete", 3, scn=3)]
    )
    files.flush()
    (file,) = [one for entry in entries(tmp_path) for one in entry["files"]]
    table = parquet.ParquetFile(tmp_path / file["path"]).read()
    types = {field.name: field.type for field in table.schema}
    assert types.pop("_databus").names == ["op", "scn", "index", "time", "gtid"]
    assert types == {
        "id": pa.int64(),
        "n": pa.int64(),
        "d": pa.decimal128(38, 2),
        "f": pa.float64(),
        "b": pa.binary(),
        "day": pa.date32(),
        "at": pa.timestamp("us", tz="UTC"),
        "local": pa.timestamp("us"),
        "span": pa.int64(),
        "yes": pa.bool_(),
    }
    rows = table.to_pylist()
    assert {name: rows[0][name] for name in ("n", "d", "day", "at")} == {
        name: values[name] for name in ("n", "d", "day", "at")
    }
    assert [row["id"] for row in rows] == [1, 2, 3]
    assert [row["_databus"]["op"] for row in rows] == ["insert", "insert", "delete"]


def test_parquet_has_all_columns_of_the_schema_also_those_of_nulls(tmp_path: Path) -> None:
    kinds = {
        "n": "int",
        "u": "bigint unsigned",
        "d": "decimal(10,2)",
        "f": "float",
        "s": "varchar(9)",
        "b": "blob",
        "day": "date",
        "at": "timestamp",
        "local": "datetime",
        "span": "time",
    }
    old, new = mysql_schema(), mysql_schema(**kinds)
    wider = mysql_schema(**{**kinds, "n": "decimal(12,1)"})
    files = sink(tmp_path, "parquet")
    files.open(Opening("test", "shop"))
    known = replace(change(3, n=7, d=Decimal("1.50"), u=Decimal(5), f=0.5), schema=new)
    last = replace(change(4, n=Decimal("2.5")), schema=wider)
    for flush in (
        [replace(change(1), schema=old), replace(change(2), schema=new)],
        [known],
        [known, last],
    ):
        files.write(flush)
        files.flush()
    tables = [
        parquet.ParquetFile(tmp_path / file["path"]).read()
        for entry in entries(tmp_path)
        for file in entry["files"]
    ]
    assert tables[0].schema == tables[1].schema
    assert tables[0].column_names == ["id", *kinds, "_databus"]
    assert tables[2].schema.field("n").type == pa.decimal128(38, 1)
    assert tables[2]["n"].to_pylist() == [Decimal("7.0"), Decimal("2.5")]


def test_a_value_that_parquet_cannot_have_is_refused(tmp_path: Path) -> None:
    files = sink(tmp_path, "parquet")
    files.open(Opening("test", "shop"))
    one = change(1, n=1 << 63)
    files.write([one])
    with pytest.raises(SinkRefusedError, match=r"shop\.orders\.n") as raised:
        files.flush()
    assert raised.value.change is one


def settings(**given: Any) -> SinkSettings:
    raw = {"name": "archive", "kind": "files", "sources": ("shop.*",), **given}
    return build_settings(raw, SinkSettings)


def test_it_has_one_lane_because_its_manifest_has_one_position(tmp_path: Path) -> None:
    make = sink_maker("files", {"folder": str(tmp_path)})
    with pytest.raises(SettingsError, match=r"files has one lane, .*: set lanes = 1$"):
        make_plan(settings(order="table", lanes=2), make)


def test_a_run_that_lost_its_positions_goes_on_by_the_manifest(tmp_path: Path) -> None:
    make = sink_maker("files", {"folder": "archive"}, tmp_path / "sink.toml")
    for last in (3, 6):
        stream = ListedStream(*(window(scn, ("t", scn)) for scn in range(1, last + 1)))
        feed = Feed(make_plan(settings(until=last, flush={"rows": 2}), make), stream)
        feed.start()
        assert feed.wait(PATIENCE_S)
        assert feed.state is SinkState.DONE
        feed.stop()
    assert read(tmp_path / "archive") == [1, 2, 3, 4, 5, 6]
