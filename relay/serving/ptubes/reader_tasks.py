"""Reader tasks: what the settings let Ptubes' clients read, by the names that those know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from databus.conf.doors.ptubes_settings import PtubesSettings, ReaderTaskSettings
from databus.conf.settings import PhysicalSourceSettings
from databus.relay.catalog import Catalog
from databus.relay.serving.ptubes.requests import Subscription
from databus.schemas.errors import RequestError

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class ReaderTask:
    """One reader task; tables are DATABASE.TABLE."""

    name: str
    physical_source: str
    src_ids: Mapping[str, int]  # by table
    key_columns: Mapping[int, tuple[str, ...]]  # by source id, where it is not the primary key
    table_names: Mapping[str, str]  # by source name

    @property
    def tables(self) -> Mapping[int, str]:
        """Its tables by source id."""
        return {src_id: table for table, src_id in self.src_ids.items()}

    def table_of(self, source: str) -> str | None:
        """Return the table of a source by its name; None if it is not of this task."""
        return self.table_names.get(source)

    def check(self, wanted: Subscription) -> None:
        """Raise RequestError for a subscription to a table that the task does not have."""
        missing = sorted(wanted.tables - self.src_ids.keys())
        if missing:
            raise RequestError(
                f"reader task {self.name} has no table {', '.join(missing[:_MOST_NAMED])}; it has "
                f"{', '.join(sorted(self.src_ids)[:_MOST_NAMED])}"
                + (" and others" if len(self.src_ids) > _MOST_NAMED else "")
            )


def make_reader_tasks(
    settings: PtubesSettings, sources: tuple[PhysicalSourceSettings, ...], catalog: Catalog
) -> dict[str, ReaderTask]:
    """Return the tasks of the settings, by name."""
    by_name = {source.name: source for source in sources}
    return {
        task.name: _make_task(task, by_name[task.physical_source], catalog)
        for task in settings.reader_tasks
    }


def _make_task(
    task: ReaderTaskSettings, source: PhysicalSourceSettings, catalog: Catalog
) -> ReaderTask:
    ids = catalog.src_ids_of(source.name)
    names = {name: source.names.table_of(name) for name in ids}
    names = {n: table for n, table in names.items() if not task.tables or table in task.tables}
    chosen = {table: ids[name] for name, table in names.items()}
    keys = {chosen[t]: columns for t, columns in task.key_columns.items() if t in chosen}
    return ReaderTask(task.name, source.name, chosen, keys, names)


def task_of(tasks: Mapping[str, ReaderTask], wanted: Subscription) -> ReaderTask:
    """Return the task of a subscription; raise RequestError."""
    task = tasks.get(wanted.reader_task)
    if task is None:
        known = ", ".join(sorted(tasks)[:_MOST_NAMED])
        raise RequestError(f"there is no reader task {wanted.reader_task}; there is {known}")
    task.check(wanted)
    return task
