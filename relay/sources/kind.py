"""The kinds of source: everything that depends on the scheme of a source's URI.

A kind knows tables. The functions here take settings and sources by the sources' names, and
return tables under those names; only what `open_source` returns has tables under their own
names, because the relay's encoder translates them (see `conf/source_names.py`).

A kind is one `SourceKind`. Its package defines it, and it is registered once: the kinds of
this project in `BUILT_IN`, those of others as entry points of the group `databus.sources`,
each under its scheme. All other code asks for a kind by a URI and never compares schemes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import NamedTuple

from databus.conf.settings import PhysicalSourceSettings
from databus.doctor.checks import Check, error
from databus.relay.sources.column_rules import ColumnRules
from databus.relay.sources.log_status import LogProbe
from databus.relay.sources.masked_scan import MaskedScan
from databus.relay.sources.named_scan import NamedScan
from databus.relay.sources.source import Source
from databus.relay.sources.table_scan import TableScan
from databus.relay.sources.uri import parse_uri
from databus.schemas.errors import SettingsError
from databus.schemas.log_mark import LogMark
from databus.schemas.table import Table

log = logging.getLogger(__name__)

GROUP = "databus.sources"
# Loaded when a URI names them: a relay of SQLite files does not import PyMySQL.
BUILT_IN = (
    EntryPoint("databus+http", "databus.relay.sources.upstream.kind:KIND", GROUP),
    EntryPoint("databus+https", "databus.relay.sources.upstream.kind:KIND", GROUP),
    EntryPoint("generator", "databus.relay.sources.generator:KIND", GROUP),
    EntryPoint("mysql", "databus.relay.sources.mysql.kind:KIND", GROUP),
    EntryPoint("sqlite", "databus.relay.sources.sqlite.kind:KIND", GROUP),
)


class CheckRequest(NamedTuple):
    """The arguments of a check by `databus doctor`.

    With `reads_log` false, only the tables are checked. Capture continues after `newest_scn`,
    None if it has never begun. `now_s` is the time since 1970.
    """

    subject: str
    settings: PhysicalSourceSettings
    now_s: float
    reads_log: bool
    newest_scn: int | None


class RepairRequest(NamedTuple):
    """A definition to write into the history of a source's tables.

    `create_table` is a CREATE TABLE statement; without one, the database is asked. `when_found` is
    called before anything is written: until then capture may go on.
    """

    source: str
    scn: int
    create_table: str | None
    when_found: Callable[[], None] = lambda: None


class RereadRequest(NamedTuple):
    """A second reading of a source's log, under another name, of what comes after an SCN.

    `mark` is the newest identity of the log that is known. `data_dir` has what the source keeps,
    and `folder` is for what the second reading keeps.
    """

    scn: int
    mark: LogMark | None
    name: str
    data_dir: Path
    folder: Path


class RereadPlace(NamedTuple):
    """After which SCN a second reading is to begin: the asked one, or an earlier one.

    The relay has the definitions of its tables from `first_scn` on, and knows none before.
    """

    begin_scn: int
    first_scn: int = 0


class Repaired(NamedTuple):
    """The definition that was written; `doubt` tells what could not be verified about it."""

    table: Table
    doubt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceKind:
    """One kind of database. A field that is None means that the kind cannot do this.

    Nothing connects before the object that a function returns is opened. The functions raise
    SettingsError for settings that the kind does not take.

    open            the source that a relay captures; it keeps files in the folder, if given
    check           checks a source for `databus doctor`
    read_columns    returns one current table; raises SourceError, UnknownSourceError
    scan            the reader of tables, for bootstrap servers and Spark
    probe_log       the probe of the database's log, where the database purges it by itself
    repair_history  writes a table's definition into the history in the folder
    prepare_reread  copies what a second reading of the log needs, and returns where it is to
                    begin; raises SourceStoppedError
    source_ids      returns the ids that sources have where they come from; None: a relay gives them
    digest          `module:class` of a `SourceTable`, which compares a table with its copy.
                    A name, because it needs Spark, and a source does not import Spark.
    """

    open: Callable[[PhysicalSourceSettings, Path | None], Source]
    check: Callable[[CheckRequest], list[Check]]
    read_columns: Callable[[PhysicalSourceSettings, str], Table] | None = None
    scan: Callable[[PhysicalSourceSettings], TableScan] | None = None
    probe_log: Callable[[PhysicalSourceSettings], LogProbe] | None = None
    repair_history: Callable[[PhysicalSourceSettings, Path, RepairRequest], Repaired] | None = None
    prepare_reread: Callable[[PhysicalSourceSettings, RereadRequest], RereadPlace] | None = None
    source_ids: Callable[[PhysicalSourceSettings], Mapping[str, int]] | None = None
    digest: str = ""


def history_path(settings: PhysicalSourceSettings, data_dir: Path) -> Path:
    """Return the file with the definitions of a source's tables over time, if its kind has one."""
    return data_dir / f"{settings.name}.history"


def kind_of(uri: str) -> SourceKind:
    """Return the kind that a URI's scheme names; raises SettingsError when there is none."""
    scheme = parse_uri(uri).scheme
    # Built-in kinds first: an installed package cannot replace one of them.
    found = [entry for entry in BUILT_IN if entry.name == scheme]
    found = found or list(entry_points(group=GROUP, name=scheme))
    if not found:
        raise SettingsError(f"uri = {uri!r}: the scheme must be one of {', '.join(_schemes())}")
    if len(found) > 1:
        values = ", ".join(map(_origin, found))
        raise SettingsError(f"uri = {uri!r}: several packages publish this scheme: {values}")
    return _load(found[0], uri)


def open_source(settings: PhysicalSourceSettings, data_dir: Path | None = None) -> Source:
    """Return a source that is not connected yet.

    It keeps what it must remember in `data_dir`, or in memory without one. Raises
    SettingsError for an unknown scheme or a setting that the kind does not take.
    """
    return kind_of(settings.uri).open(settings.by_table(), data_dir)


def open_scan(settings: PhysicalSourceSettings) -> TableScan:
    """Return a table scan that is not open yet, which reads what a relay captures of the columns.

    Raises SettingsError for a kind without one, and for settings that it does not take.
    """
    scan = kind_of(settings.uri).scan
    if scan is None:
        raise SettingsError(f"uri = {settings.uri!r}: this kind of source has no tables to read")
    names, rules = settings.names, ColumnRules.of(settings)
    opened = scan(settings.by_table())
    if rules:
        opened = MaskedScan(opened, rules)
    return NamedScan(opened, names) if names.have_own else opened


def open_log_probe(settings: PhysicalSourceSettings) -> LogProbe | None:
    """Return the probe of the database's log; None when only the relay purges that log."""
    probe_log = kind_of(settings.uri).probe_log
    return None if probe_log is None else probe_log(settings.by_table())


def read_columns(settings: PhysicalSourceSettings, source: str) -> Table:
    """Return a source's table as its database has it now; `source` may be the table's name.

    Raises UnknownSourceError, SourceUnavailableError, SourceStoppedError, or
    SettingsError for a kind without tables.
    """
    columns = kind_of(settings.uri).read_columns
    if columns is None:
        text = "this kind of source has no tables to make a schema of"
        raise SettingsError(f"uri = {settings.uri!r}: {text}")
    names = settings.names
    table = columns(settings.by_table(), names.table_of(source))
    table = ColumnRules.of(settings).table(table)
    return table.named(names.name_of(table.source))


def source_ids(settings: PhysicalSourceSettings) -> Mapping[str, int]:
    """Return the ids that sources have where they come from, by name; none if a relay gives them.

    Raises SettingsError if they cannot be asked for.
    """
    found = kind_of(settings.uri).source_ids
    return {} if found is None else found(settings)


def repair_history(
    settings: PhysicalSourceSettings, data_dir: Path, request: RepairRequest
) -> Repaired:
    """Write a table's definition into the history of a source in `data_dir`.

    The request names the source or its table, as advice of a source kind does.
    Raises UnknownSourceError, SourceError, or SettingsError when the kind keeps no history or
    the definition cannot be right.
    """
    repair = kind_of(settings.uri).repair_history
    if repair is None:
        text = "this kind of source keeps no history of definitions"
        raise SettingsError(f"uri = {settings.uri!r}: {text}")
    request = request._replace(source=settings.names.table_of(request.source))
    return repair(settings.by_table(), data_dir, request)


def check_source(
    settings: PhysicalSourceSettings, now_s: float, *, reads_log: bool, newest_scn: int | None
) -> list[Check]:
    """Return what `databus doctor` says about a source; see `CheckRequest`."""
    subject = f"source {settings.name}"
    try:
        kind = kind_of(settings.uri)
        request = CheckRequest(subject, settings.by_table(), now_s, reads_log, newest_scn)
        return kind.check(request)
    except SettingsError as problem:
        return [error(subject, str(problem))]
    except Exception as problem:  # other packages' code must not end the other checks
        log.debug("the check of %s failed", subject, exc_info=problem)
        return [error(subject, f"its check failed: {problem!r}")]


def _schemes() -> list[str]:
    published = entry_points(group=GROUP)
    return sorted({entry.name for entry in (*BUILT_IN, *published)})


def _load(entry: EntryPoint, uri: str) -> SourceKind:
    try:
        kind = entry.load()
    except Exception as problem:  # other packages' code may raise anything
        text = f"uri = {uri!r}: {_origin(entry)} cannot be loaded: {problem!r}"
        raise SettingsError(text) from problem
    if not isinstance(kind, SourceKind):
        raise SettingsError(f"uri = {uri!r}: {_origin(entry)} is not a SourceKind")
    return kind


def _origin(entry: EntryPoint) -> str:
    """Return where an entry point leads to, and the package to install or remove."""
    return f"{entry.value} of package {entry.dist.name}" if entry.dist else entry.value
