"""Parquet files in buckets by hash of the key; a batch rewrites the buckets that it changes.

    manifests/00000000000000000007.json   a version: its files, schema, key and commit log
    files/0003-<uuid>.parquet             the rows of bucket 3, in one or more versions

A version exists once its manifest does. The manifest is linked to its name; that
fails if another writer has taken the number, and then the batch is tried again on
that writer's version. A killed batch leaves files that no manifest names. They are
removed, like those of old versions, when they are an hour old. The folder must be
on a POSIX file system that all Spark workers see.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import time
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from databus.client.spark.targets.changes import Changes, cast_to, unified_schema
from databus.client.spark.targets.commit_log import CommitLog
from databus.client.spark.targets.merge_plan import merged, without_as_of
from databus.client.spark.targets.places import check_folder, local_file
from databus.client.spark.targets.reshaping import Reshaping
from databus.client.spark.targets.target import (
    Applied,
    LostCommitError,
    Put,
    PutRequest,
    RetryingTarget,
    apply_once,
    check_same_keys,
    no_table,
    read_files,
)
from databus.daemon.files import SHARED, replace_file, sync_folder
from databus.schemas.errors import SettingsError

_DIGITS = 20
_UNUSED_S = 3600.0


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of the table."""

    version: int
    keys: tuple[str, ...]
    schema: pa.Schema
    # File names by bucket; an empty bucket has no file.
    files: Mapping[int, str]
    buckets: int
    commit_log: CommitLog = field(default_factory=CommitLog)

    def to_json(self) -> str:
        """Return the manifest as stored."""
        return json.dumps(
            {
                "keys": self.keys,
                "buckets": self.buckets,
                "files": {str(bucket): name for bucket, name in self.files.items()},
                "book": dict(self.commit_log.entries),
                "schema": base64.b64encode(self.schema.serialize().to_pybytes()).decode(),
            },
            indent=1,
        )

    @classmethod
    def of_json(cls, version: int, text: str) -> Manifest:
        """Return the manifest of a version from its stored text."""
        held: dict[str, Any] = json.loads(text)
        return cls(
            version=version,
            keys=tuple(held["keys"]),
            schema=pa.ipc.read_schema(pa.py_buffer(base64.b64decode(held["schema"]))),
            files={int(bucket): name for bucket, name in held["files"].items()},
            buckets=held["buckets"],
            commit_log=CommitLog(held["book"]),
        )


class ParquetTarget(RetryingTarget):
    """A folder of Parquet files.

    Options: `buckets`: the number of files of a new table (a batch rewrites
    the files that it changes, and needs memory for itself and one of them);
    `keep_versions`: how many versions are kept for running readers; `attempts`:
    how often a commit is tried when other writers win.
    """

    OPTIONS = ("buckets", "keep_versions", "attempts")

    def __init__(
        self,
        uri: str,
        keys: Sequence[str] | None = None,
        *,
        source_column: bool = False,
        buckets: int = 16,
        keep_versions: int = 10,
        attempts: int = 20,
    ) -> None:
        if buckets < 1 or keep_versions < 1:
            raise SettingsError("buckets and keep_versions are 1 or more")
        super().__init__(uri, keys, source_column, attempts)
        self._folder = Path(uri.removeprefix("parquet:"))
        check_folder(uri, str(self._folder.absolute()))
        self._buckets = buckets
        self._keep_versions = keep_versions

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that make a row unique; () as long as they are not known."""
        manifest = self._manifest()
        return self._given_keys or (() if manifest is None else manifest.keys)

    def schema(self) -> pa.Schema | None:
        """Return the table's columns, bookkeeping included; None while there is no table."""
        manifest = self._manifest()
        return None if manifest is None else manifest.schema

    def version(self) -> int | None:
        """Return the number of the newest manifest; None while there is no table."""
        manifest = self._manifest()
        return None if manifest is None else manifest.version

    def _apply(self, app_id: str, batch_id: int, changes: Changes) -> Applied:
        def attempt() -> Applied:
            manifest = self._manifest() or self._first(changes)
            check_same_keys(self.uri, manifest.keys, changes.keys)

            def commit(after: CommitLog) -> tuple[int, int]:
                return self._commit(replace(manifest, commit_log=after), changes)

            return apply_once(manifest.commit_log, app_id, batch_id, changes, commit)

        return self._retried(attempt, changes.newest_scn)

    def _put(self, request: PutRequest) -> Put:
        def attempt() -> Put:
            manifest = self._read_manifest()
            takes_new = manifest.commit_log.takes_new(request.physical_source, request.scn)
            changes = request.changes(manifest.keys)
            counts = self._commit(manifest, changes, takes_new=takes_new)
            return Put(*counts, took_new_rows=takes_new)

        return self._retried(attempt, request.scn)

    def reshape(self, plan: Reshaping, app_id: str | None, batch_id: int) -> None:
        """Rewrite all files with other columns, in one version; see `Target.reshape`."""

        def attempt() -> None:
            manifest = self._manifest()
            if manifest is None or (app_id and manifest.commit_log.has(app_id, batch_id)):
                return
            commit_log = manifest.commit_log
            if app_id is not None:
                commit_log = commit_log.after(app_id, batch_id, {})
            tables = ((b, plan.table(self._bucket(manifest, b))) for b in manifest.files)
            after = replace(manifest, schema=plan.schema, keys=plan.keys, commit_log=commit_log)
            self._put_in_place(after, tables)

        self._retried(attempt, batch_id)
        self._given_keys = plan.keys if self._given_keys else ()

    def take_over(self, uri: str, app_id: str, batch_id: int, positions: Mapping[str, int]) -> None:
        """Replace all rows with the other's, in one version; see `Target.take_over`."""
        other = ParquetTarget(uri)

        def attempt() -> None:
            manifest = self._manifest()
            if manifest is None or manifest.commit_log.has(app_id, batch_id):
                return
            theirs = other._read_manifest()
            commit_log = manifest.commit_log.after(app_id, batch_id, positions)
            after = replace(theirs, version=manifest.version, commit_log=commit_log)
            self._put_in_place(after, ((b, other._bucket(theirs, b)) for b in theirs.files))

        self._retried(attempt, batch_id)
        shutil.rmtree(other._folder, ignore_errors=True)

    def _put_in_place(self, manifest: Manifest, tables: Iterable[tuple[int, pa.Table]]) -> None:
        """Write the next version of a manifest, with exactly these rows by bucket."""
        # The files first: a version exists only once its manifest does.
        files = {bucket: self._write(bucket, table) for bucket, table in tables if table.num_rows}
        self._publish(replace(manifest, version=manifest.version + 1, files=files))
        self._tidy()

    def forget_as_of(self, source: str | None = None) -> None:
        """Clear the as-of SCN of a source's rows; see `Target.forget_as_of`."""

        def attempt() -> None:
            manifest = self._manifest()
            if manifest is None:
                return
            files = {
                bucket: self._write(bucket, without_as_of(self._bucket(manifest, bucket), source))
                for bucket in manifest.files
            }
            self._publish(replace(manifest, version=manifest.version + 1, files=files))
            self._tidy()

        self._retried(attempt, -1)

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the table's current rows; its files are kept for `keep_versions` versions."""
        manifest = self._read_manifest()
        files = [local_file(str(self._file(name))) for name in manifest.files.values()]
        return read_files(spark, manifest.schema, files)

    def read(self) -> pa.Table:
        """Return the table's current rows, read without Spark."""
        manifest = self._read_manifest()
        parts = [self._bucket(manifest, bucket) for bucket in manifest.files]
        return pa.concat_tables(parts) if parts else manifest.schema.empty_table()

    def _read_commit_log(self) -> CommitLog:
        manifest = self._manifest()
        return CommitLog() if manifest is None else manifest.commit_log

    def _versions(self) -> list[int]:
        """Return the numbers of all versions, the oldest first."""
        folder = self._folder / "manifests"
        if not folder.is_dir():
            return []
        return sorted(int(path.stem) for path in folder.glob("*.json"))

    def _manifest(self) -> Manifest | None:
        while versions := self._versions():
            try:
                text = self._manifest_path(versions[-1]).read_text(encoding="utf-8")
            except FileNotFoundError:
                # Other writers have published so many versions that this one is removed.
                continue
            return Manifest.of_json(versions[-1], text)
        return None

    def _read_manifest(self) -> Manifest:
        manifest = self._manifest()
        if manifest is None:
            raise no_table(self.uri)
        return manifest

    def _manifest_path(self, version: int) -> Path:
        return self._folder / "manifests" / f"{version:0{_DIGITS}}.json"

    def _file(self, name: str) -> Path:
        return self._folder / "files" / name

    def _first(self, changes: Changes) -> Manifest:
        """Return the manifest of an empty table with the batch's schema; nothing is written."""
        check_same_keys(self.uri, self._given_keys, changes.keys)
        for name in ("manifests", "files"):
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        return Manifest(0, changes.keys, changes.schema, {}, self._buckets)

    def _commit(
        self, manifest: Manifest, changes: Changes, *, takes_new: bool = True
    ) -> tuple[int, int]:
        """Write the next version of a manifest; return how many rows were written and removed."""
        schema = unified_schema(manifest.schema, changes.schema, self.uri)
        manifest = replace(manifest, schema=schema)
        rows = changes.in_types_of(schema).rows
        bucket_of = buckets_of(rows, manifest.keys, manifest.buckets)
        files, written, removed = dict(manifest.files), 0, 0
        # A mark removes rows by SCN, not by key, so they may be in every bucket.
        with_marks = range(manifest.buckets) if changes.marks else ()
        for bucket in sorted({*np.unique(bucket_of).tolist(), *with_marks}):
            mine = replace(changes, rows=rows.filter(pa.array(bucket_of == bucket)))
            held = self._bucket(manifest, bucket)
            table, *counts = merged(held, mine, takes_new=takes_new)
            # A bucket in which nothing changes keeps its file.
            if any(counts):
                files.pop(bucket, None)
                if table.num_rows:
                    files[bucket] = self._write(bucket, table)
                written, removed = written + counts[0], removed + counts[1]
        self._publish(replace(manifest, version=manifest.version + 1, files=files))
        self._tidy()
        return written, removed

    def _bucket(self, manifest: Manifest, bucket: int) -> pa.Table:
        name = manifest.files.get(bucket)
        if name is None:
            return manifest.schema.empty_table()
        # ParquetFile, as read_table() would take `name=value` folders for columns.
        with pq.ParquetFile(self._file(name)) as file:
            return cast_to(file.read(), manifest.schema)

    def _write(self, bucket: int, table: pa.Table) -> str:
        name = f"{bucket:04}-{uuid.uuid4().hex}.parquet"
        buffer = pa.BufferOutputStream()
        pq.write_table(table, buffer)
        replace_file(self._file(name), buffer.getvalue().to_pybytes(), SHARED)
        return name

    def _publish(self, manifest: Manifest) -> None:
        """Make a manifest the newest version.

        Raises LostCommitError if another writer has published that version.
        """
        path = self._manifest_path(manifest.version)
        draft = self._file(f"manifest-{uuid.uuid4().hex}.json")
        # Complete and synced before it gets its name.
        replace_file(draft, manifest.to_json().encode(), SHARED)
        try:
            # link fails if the name is taken; rename would replace the other writer's manifest.
            os.link(draft, path)
        except FileExistsError as error:
            raise LostCommitError from error
        finally:
            draft.unlink()
        sync_folder(path.parent)

    def _tidy(self) -> None:
        """Remove versions that are no longer kept, and files that no version names."""
        versions = self._versions()
        kept, old = versions[-self._keep_versions :], versions[: -self._keep_versions]
        if not old:
            return
        for version in old:
            self._manifest_path(version).unlink(missing_ok=True)
        used: set[str] = set()
        for version in kept:
            try:
                text = self._manifest_path(version).read_text(encoding="utf-8")
            except FileNotFoundError:
                # Another writer tidies up and has removed a newer version: leave it to that one.
                return
            used.update(Manifest.of_json(version, text).files.values())
        # Newer files may belong to a version that another writer is about to publish.
        oldest = time.time() - _UNUSED_S
        for path in (self._folder / "files").iterdir():
            if path.name not in used and path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)


def buckets_of(rows: pa.Table, keys: Sequence[str], count: int) -> np.ndarray:
    """Return the bucket of each row; equal keys are in the same bucket.

    The rule is part of the format: CRC-32 of the key's values as text, in order,
    each followed by a zero byte.
    """
    columns = [
        rows[key].cast(pa.binary() if _is_bytes(rows[key].type) else pa.string()).to_pylist()
        for key in keys
    ]
    hashes = np.zeros(rows.num_rows, dtype=np.int64)
    for n, values in enumerate(zip(*columns, strict=True)):
        code = 0
        for value in values:
            code = zlib.crc32((value if isinstance(value, bytes) else value.encode()) + b"\0", code)
        hashes[n] = code
    return hashes % count


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
