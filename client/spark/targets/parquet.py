"""Parquet files by hash of the key, rewritten where rows change; on a disk, no library needed.

    manifests/00000000000000000007.json   a version: its files, schema, key and book
    files/0003-<uuid>.parquet             the rows of bucket 3, in one version or several

A version is there when its manifest is: it is linked to its name, which fails if
another writer has taken the number, who is then read and the batch done over.
A killed batch leaves files that no manifest names; they go, like those of old
versions, once they are an hour old. The folder must be on a POSIX file system
that all of Spark sees.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from databus.client.spark.targets.changes import (
    Changes,
    cast_to,
    put_changes,
    unified_schema,
)
from databus.client.spark.targets.commit_log import Book
from databus.client.spark.targets.merge_plan import merged, without_as_of
from databus.client.spark.targets.places import check_folder, local_file
from databus.client.spark.targets.reshaping import Reshaping
from databus.client.spark.targets.target import (
    Applied,
    Put,
    check_same_keys,
    lost_every_time,
    no_table,
    read_files,
    whole_key,
)
from databus.daemon.files import SHARED, replace_file, sync_folder
from databus.schemas.errors import SettingsError

_DIGITS = 20
_UNUSED_S = 3600.0
_Done = TypeVar("_Done")


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of the table."""

    version: int
    keys: tuple[str, ...]
    schema: pa.Schema
    # File names by bucket; a bucket without rows has none.
    files: Mapping[int, str]
    buckets: int
    book: Book = field(default_factory=Book)

    def to_json(self) -> str:
        """Return it as it is stored."""
        return json.dumps(
            {
                "keys": self.keys,
                "buckets": self.buckets,
                "files": {str(bucket): name for bucket, name in self.files.items()},
                "book": dict(self.book.entries),
                "schema": base64.b64encode(self.schema.serialize().to_pybytes()).decode(),
            },
            indent=1,
        )

    @classmethod
    def of_json(cls, version: int, text: str) -> Manifest:
        """Return what is stored as a version."""
        held: dict[str, Any] = json.loads(text)
        return cls(
            version=version,
            keys=tuple(held["keys"]),
            schema=pa.ipc.read_schema(pa.py_buffer(base64.b64decode(held["schema"]))),
            files={int(bucket): name for bucket, name in held["files"].items()},
            buckets=held["buckets"],
            book=Book(held["book"]),
        )


class ParquetTarget:
    """A folder of Parquet files.

    Options: `buckets`: into how many files a new table is cut (a batch rewrites
    those that it changes, and needs memory for one of them besides itself);
    `keep_versions`: how many are kept for readers that have begun; `attempts`:
    how often a commit that loses against another writer is done over.
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
        self.uri = uri
        self.source_column = source_column
        self._folder = Path(uri.removeprefix("parquet:"))
        check_folder(uri, str(self._folder.absolute()))
        self._given_keys = whole_key(keys, source_column)
        self._buckets = buckets
        self._keep_versions = keep_versions
        self._attempts = attempts

    @property
    def keys(self) -> tuple[str, ...]:
        """Name the columns that make a row unique; () while nobody has said so."""
        manifest = self._manifest()
        return self._given_keys or (() if manifest is None else manifest.keys)

    def applied(self, app_id: str) -> int | None:
        """Return the last batch of an app that is applied, or None."""
        return self._book().applied(app_id)

    def positions(self) -> dict[str, int]:
        """Return the SCN per physical source up to which everything is applied."""
        return self._book().positions()

    def sources(self) -> list[str]:
        """Name the source that the rows are of, as far as it was noted."""
        return self._book().sources()

    def schema(self) -> pa.Schema | None:
        """Return the table's columns, bookkeeping included; None while there is no table."""
        manifest = self._manifest()
        return None if manifest is None else manifest.schema

    def version(self) -> int | None:
        """Return the number of the newest manifest; None while there is no table."""
        manifest = self._manifest()
        return None if manifest is None else manifest.version

    def apply(self, app_id: str, batch_id: int, changes: Changes) -> Applied:
        """Apply a batch as one version, with the note that it is applied.

        Raises SettingsError for another key than the table's,
        IncompatibleSchemaError for a column of another type, ConsumerError if
        other writers win every time.
        """
        if changes.is_nothing():
            return Applied(positions=self.positions())

        def attempt() -> Applied:
            manifest = self._manifest() or self._first(changes)
            check_same_keys(self.uri, manifest.keys, changes.keys)
            book = manifest.book
            if book.has(app_id, batch_id):
                return Applied(is_skipped=True, positions=book.positions())
            after = book.after(app_id, batch_id, changes.positions, changes.source)
            counts = self._commit(replace(manifest, book=after), changes)
            return Applied(*counts, positions=after.positions())

        return self._retried(attempt, changes.newest_scn)

    def put(
        self,
        rows: pa.Table | None = None,
        deletes: pa.Table | None = None,
        *,
        physical_source: str,
        scn: int,
        source: str | None = None,
    ) -> Put:
        """Make rows, and keys to delete, what the source had at an SCN; see `Target.put`."""

        def attempt() -> Put:
            manifest = self._manifest()
            if manifest is None:
                raise no_table(self.uri)
            keys, book = manifest.keys, manifest.book
            changes = put_changes(rows, deletes, keys, scn, source)
            takes_new = book.takes_new(physical_source, scn)
            written, deleted = self._commit(manifest, changes, takes_new=takes_new)
            return Put(written, deleted, takes_new)

        return self._retried(attempt, scn)

    def reshape(self, plan: Reshaping, app_id: str | None, batch_id: int) -> None:
        """Rewrite all files with other columns, in one version; see `Target.reshape`."""

        def attempt() -> None:
            manifest = self._manifest()
            if manifest is None or (app_id and manifest.book.has(app_id, batch_id)):
                return
            book = manifest.book
            if app_id is not None:
                book = book.after(app_id, batch_id, {})
            tables = ((b, plan.table(self._bucket(manifest, b))) for b in manifest.files)
            after = replace(manifest, schema=plan.schema, keys=plan.keys, book=book)
            self._put_in_place(after, tables)

        self._retried(attempt, batch_id)
        self._given_keys = plan.keys if self._given_keys else ()

    def take_over(self, uri: str, app_id: str, batch_id: int, positions: Mapping[str, int]) -> None:
        """Take the other's files in place of all, in one version; see `Target.take_over`."""
        other = ParquetTarget(uri)

        def attempt() -> None:
            manifest = self._manifest()
            if manifest is None or manifest.book.has(app_id, batch_id):
                return
            theirs = other._read_manifest()
            book = manifest.book.after(app_id, batch_id, positions)
            after = replace(theirs, version=manifest.version, book=book)
            self._put_in_place(after, ((b, other._bucket(theirs, b)) for b in theirs.files))

        self._retried(attempt, batch_id)
        shutil.rmtree(other._folder, ignore_errors=True)

    def _put_in_place(self, manifest: Manifest, tables: Iterable[tuple[int, pa.Table]]) -> None:
        """Write the version after a manifest's, with these rows by bucket and no others."""
        files = {bucket: self._write(bucket, table) for bucket, table in tables if table.num_rows}
        self._publish(replace(manifest, version=manifest.version + 1, files=files))
        self._tidy()

    def forget_as_of(self, source: str | None = None) -> None:
        """Take no row of a source for known to be there; see `Target.forget_as_of`."""

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
        """Return the table as it is now; its files are kept for `keep_versions` versions."""
        manifest = self._read_manifest()
        files = [local_file(str(self._file(name))) for name in manifest.files.values()]
        return read_files(spark, manifest.schema, files)

    def read(self) -> pa.Table:
        """Return the table as it is now, read without Spark."""
        manifest = self._read_manifest()
        parts = [self._bucket(manifest, bucket) for bucket in manifest.files]
        return pa.concat_tables(parts) if parts else manifest.schema.empty_table()

    def close(self) -> None:
        """Do nothing: files are open only while they are read or written."""

    def _book(self) -> Book:
        manifest = self._manifest()
        return Book() if manifest is None else manifest.book

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
                # So many versions came meanwhile that this one is gone already.
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
        """Return the manifest of an empty table as the batch has it; it is not written."""
        check_same_keys(self.uri, self._given_keys, changes.keys)
        for name in ("manifests", "files"):
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        return Manifest(0, changes.keys, changes.schema, {}, self._buckets)

    def _retried(self, attempt: Callable[[], _Done], scn: int) -> _Done:
        for _ in range(self._attempts):
            try:
                return attempt()
            except FileExistsError:
                continue
        raise lost_every_time(self.uri, scn, self._attempts)

    def _commit(
        self, manifest: Manifest, changes: Changes, *, takes_new: bool = True
    ) -> tuple[int, int]:
        """Write the version after a manifest; return how many rows were written and removed.

        Raises FileExistsError if somebody else has written that version.
        """
        schema = unified_schema(manifest.schema, changes.schema, self.uri)
        manifest = replace(manifest, schema=schema)
        rows = changes.in_types_of(schema).rows
        bucket_of = buckets_of(rows, manifest.keys, manifest.buckets)
        files, written, removed = dict(manifest.files), 0, 0
        with_marks = range(manifest.buckets) if changes.marks else ()
        for bucket in sorted({*np.unique(bucket_of).tolist(), *with_marks}):
            mine = replace(changes, rows=rows.filter(pa.array(bucket_of == bucket)))
            held = self._bucket(manifest, bucket)
            table, *counts = merged(held, mine, takes_new=takes_new)
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
        # One file, and not a data set of which the folders' names would be columns.
        with pq.ParquetFile(self._file(name)) as file:
            return cast_to(file.read(), manifest.schema)

    def _write(self, bucket: int, table: pa.Table) -> str:
        name = f"{bucket:04}-{uuid.uuid4().hex}.parquet"
        buffer = pa.BufferOutputStream()
        pq.write_table(table, buffer)
        replace_file(self._file(name), buffer.getvalue().to_pybytes(), SHARED)
        return name

    def _publish(self, manifest: Manifest) -> None:
        """Make a manifest the newest version, unless somebody has been faster."""
        path = self._manifest_path(manifest.version)
        draft = self._file(f"manifest-{uuid.uuid4().hex}.json")
        replace_file(draft, manifest.to_json().encode(), SHARED)
        try:
            os.link(draft, path)
        finally:
            draft.unlink()
        sync_folder(path.parent)

    def _tidy(self) -> None:
        """Remove versions that are no longer kept, and files that no version has."""
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
                # Somebody else tidies up, and is further: leave it to them.
                return
            used.update(Manifest.of_json(version, text).files.values())
        # Younger ones may belong to a version that somebody is about to write.
        oldest = time.time() - _UNUSED_S
        for path in (self._folder / "files").iterdir():
            if path.name not in used and path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)


def buckets_of(rows: pa.Table, keys: Sequence[str], count: int) -> np.ndarray:
    """Return the bucket of each row; the same key is always in the same one.

    The rule is part of the format: CRC-32 of the key's values as text, one after
    another, each followed by a zero byte.
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
