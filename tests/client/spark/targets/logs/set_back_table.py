"""A table that other programs set back to an earlier version."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from deltalake import DeltaTable, write_deltalake

from databus.client.spark.targets.changes import changes_of
from databus.client.spark.targets.iceberg import IcebergTarget
from databus.client.spark.targets.target import Target, open_target
from tests.client.spark.changing_source import batch_of, change
from tests.client.spark.conftest import TABLE_NUMBERS
from tests.client.spark.targets.target_rows import rows_of_target


class SetBack:
    """A table of some form, and what other programs do to it."""

    def __init__(self, form: str, folder: Path) -> None:
        self.is_delta = form.startswith("delta")
        self.path = f"{folder}/person"
        self.name = f"tests.b{next(TABLE_NUMBERS)}"
        self.uri = f"{form}:{self.path}" if self.is_delta else f"{form}:lake.{self.name}"
        self.target = self.opened()

    def opened(self) -> Target:
        return open_target(self.uri, ["id"])

    def batch(self, number: int, app: str = "app", target: Target | None = None) -> None:
        """Apply a row, whose id, SCN and batch are a number."""
        row = {"id": number, "name": app}
        changes = changes_of(batch_of([change("insert", number, row)]), ["id"])
        (target or self.target).apply(app, number, changes)

    def place(self) -> int:
        """Return what `back_to` takes to come back here."""
        if self.is_delta:
            return DeltaTable(self.path).version()
        snapshot = self._iceberg().current_snapshot()
        assert snapshot is not None
        return int(snapshot.snapshot_id)

    def back_to(self, place: int) -> None:
        if self.is_delta:
            DeltaTable(self.path).restore(place)
        else:
            self._iceberg().manage_snapshots().set_current_snapshot(place).commit()

    def append(self) -> None:
        """Have somebody else add no row, in a version of its own."""
        schema = self.target.schema()
        assert schema is not None
        if self.is_delta:
            write_deltalake(self.path, schema.empty_table(), mode="append")
        else:
            self._iceberg().append(self._iceberg().scan().to_arrow().slice(0, 0))

    def _iceberg(self) -> Any:
        target = self.target
        assert isinstance(target, IcebergTarget)
        return target._catalog.load_table(self.name)

    def says(self, *apps: str) -> tuple[list[int | None], dict[str, int]]:
        """Return the batches of apps and the positions, which a newly opened target has, too."""
        with closing(self.opened()) as other:
            found = [other.applied(app) for app in apps], other.positions()
        assert found == ([self.target.applied(app) for app in apps], self.target.positions())
        return found

    def ids(self) -> set[int]:
        return {row["id"] for row in rows_of_target(self.target)}
