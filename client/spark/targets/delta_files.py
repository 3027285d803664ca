"""The files of a Delta table, as executors read and write them; the driver commits them.

And how they are removed.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction
from pyarrow.acero import Declaration, FilterNodeOptions, ScanNodeOptions
from pyarrow.dataset import FileSystemDataset
from pyspark.sql import DataFrame, SparkSession, functions as sf

from databus.client.spark.arrow.row_keys import quoted
from databus.client.spark.targets.executors import FILE, FileChange
from databus.client.spark.targets.merge_plan import Condition, among
from databus.client.spark.targets.places import delta_files, is_local, local_folder
from databus.client.spark.targets.target import read_files
from databus.schemas.errors import SettingsError

log = logging.getLogger(__name__)


def check_plain(table: DeltaTable, uri: str) -> None:
    """Raise SettingsError for a table that cannot be read as plain files."""
    if table.metadata().partition_columns or pa.table(table.deletion_vectors()).num_rows:
        raise SettingsError(
            f"{uri}: a table with partition columns or deletion vectors cannot be read "
            "as plain files: read it with Spark's own Delta connector"
        )


def found_in(
    table: DeltaTable, keys: pa.Table, others: Sequence[Condition], least: Condition = ()
) -> pa.Table:
    """Return the rows of a plain table that fulfil the condition `among` these.

    Only Parquet's own statistics skip rows: where the Delta log has no bounds of a column,
    delta-rs says that all values are at least null, and no row would be found.
    """
    dataset = table.to_pyarrow_dataset()
    schema = dataset.schema
    condition = among(keys, others, least)
    # delta-rs writes text and bytes as views, and a merge copies rows to such files. Arrow cannot
    # compare the statistics of a view: such columns are compared after they were read.
    only = [field.name for field in schema if not _is_text(field.type)]
    first = among(keys, others, least, only)
    parts = [schema.empty_table()]
    for file in dataset.get_fragments():
        plain = file.format.make_fragment(file.path, file.filesystem)
        read = FileSystemDataset([plain], schema, dataset.format)
        if not any(map(_is_view, plain.physical_schema.types)):
            parts.append(read.to_table(filter=condition))
            continue
        steps = [
            Declaration("scan", ScanNodeOptions(read, columns=schema.names, filter=first)),
            Declaration("filter", FilterNodeOptions(condition)),
        ]
        parts.append(Declaration.from_sequence(steps).to_table().select(schema.names))
    return pa.concat_tables(parts)


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_string(kind) or types.is_binary(kind) or _is_view(kind))


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def remove_table(path: str, storage: Mapping[str, str] | None) -> None:
    """Remove a table's folder with all that is in it; what cannot be removed stays."""
    if is_local(path):
        shutil.rmtree(local_folder(path), ignore_errors=True)
        return
    try:
        _remove_objects(path, storage)
    except (OSError, DeltaError) as error:
        log.warning("%s: its files stay: %s", path, error)


def _remove_objects(url: str, storage: Mapping[str, str] | None) -> None:
    """Remove all objects under a URL with delta-rs, for which no library of the store is needed."""
    files = pa.fs.PyFileSystem(DeltaStorageHandler(url, dict(storage or {})))
    found = files.get_file_info(pa.fs.FileSelector("", allow_not_found=True, recursive=True))
    paths = [one.path for one in found if one.type == pa.fs.FileType.File]
    # The Delta log first, from its end: so what a killed process leaves is a table as it was once.
    of_log = [path for path in paths if path.startswith("_delta_log/")]
    for path in [*sorted(of_log, reverse=True), *(set(paths) - set(of_log))]:
        files.delete_file(path)


class DeltaFiles:
    """The files of a Delta table at the version that was read."""

    def __init__(
        self, table: DeltaTable, schema: pa.Schema, storage: Mapping[str, str] | None
    ) -> None:
        self._table = table
        self._schema = schema
        self._storage = storage
        actions = pa.table(table.get_add_actions(flatten=True))
        paths = delta_files(table.table_uri, table.file_uris())
        self._rows = dict(zip(paths, _counts(actions), strict=True))
        # In the log's spelling; a RemoveAction takes the decoded path.
        self._named = dict(zip(paths, map(unquote, actions["path"].to_pylist()), strict=True))
        self._sizes = dict(zip(paths, actions["size_bytes"].to_pylist(), strict=True))
        self._frames: dict[tuple[str, ...], DataFrame] = {}

    def rows_by_path(self) -> Mapping[str, int]:
        """Return the number of rows of each file, by its path for Spark."""
        return self._rows

    def frame(self, spark: SparkSession, paths: Sequence[str]) -> DataFrame:
        """Return the rows of some files."""
        # Spark asks the storage for each file when a frame is made, for many files in a job.
        key = tuple(sorted(paths))
        if key not in self._frames:
            self._frames[key] = read_files(spark, self._schema, key)
        return self._frames[key]

    def columns(self, spark: SparkSession, names: Sequence[str]) -> DataFrame:
        """Return some columns of all rows, and in FILE the encoded URL of their file."""
        listed = [sf.col(quoted(name)) for name in names]
        file = sf.col("_metadata.file_path").alias(FILE)
        return self.frame(spark, list(self._rows)).select(*listed, file)

    def paths_of(self, found: Collection[str]) -> list[str]:
        """Return the paths of the files that FILE has told."""
        # Spark may begin a URL in another way (`file:/`, `s3a:`), so the names of files count.
        names = {unquote(url).rpartition("/")[2] for url in found}
        paths = [path for path in self._rows if path.rpartition("/")[2] in names]
        assert len(paths) >= len(names), f"Spark read files that the table has not: {names}"
        # Two files of one name are both replaced, which is right as well.
        return paths

    def writer(self) -> Callable[[pa.Table], str]:
        """Return a function that writes a file, and describes it by name, size and statistics."""
        uri = self._table.table_uri
        folder = local_folder(uri) if is_local(uri) else None
        return partial(_write, uri, folder, self._storage)

    def commit(self, change: FileChange, properties: CommitProperties) -> None:
        """Replace files in one commit, if the table still has the version that was read."""
        now_ms = time.time_ns() // 1_000_000
        removed = [
            RemoveAction(self._named[path], True, now_ms, self._sizes[path])
            for path in change.removed
        ]
        added = [
            AddAction(one["path"], one["size"], {}, now_ms, True, one["stats"])
            for one in map(json.loads, change.added)
        ]
        self._table.create_write_transaction(
            [*removed, *added], "append", self._table.schema(), commit_properties=properties
        )


def _write(
    uri: str, folder: Path | None, storage: Mapping[str, str] | None, table: pa.Table
) -> str:
    """Write rows to a new file of a table; return its description."""
    name = f"part-{uuid.uuid4().hex}.parquet"
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer)
    content = buffer.getvalue()
    if folder is not None:
        (folder / name).write_bytes(content)
    else:
        handler = DeltaStorageHandler(uri, dict(storage or {}))
        with pa.fs.PyFileSystem(handler).open_output_stream(name) as file:
            file.write(content)
    return json.dumps({"path": name, "size": content.size, "stats": json.dumps(_stats(table))})


def _stats(table: pa.Table) -> dict[str, Any]:
    """Return a file's statistics as the Delta log has them; bounds only of integers."""
    found: dict[str, Any] = {"numRecords": table.num_rows, "nullCount": {}}
    found |= {"minValues": {}, "maxValues": {}}
    for field in table.schema:
        found["nullCount"][field.name] = table[field.name].null_count
        if pa.types.is_integer(field.type):
            bounds = pc.min_max(table[field.name]).as_py()
            if bounds["min"] is not None:
                found["minValues"][field.name] = bounds["min"]
                found["maxValues"][field.name] = bounds["max"]
    return found


def _counts(actions: pa.Table) -> list[int]:
    """Return the numbers of rows; 0 where the log does not say it."""
    if "num_records" not in actions.column_names:
        return [0] * actions.num_rows
    return [number or 0 for number in actions["num_records"].to_pylist()]
