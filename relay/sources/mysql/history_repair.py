"""Adds a table definition to the history by hand, where capture could not derive it.

The current definition in the database is used only if neither the history nor the
server's log has a later statement that alters the table.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from databus.conf.settings import PhysicalSourceSettings
from databus.relay.sources.kind import Repaired
from databus.relay.sources.mysql.replication.dump import BinlogDump
from databus.relay.sources.mysql.search.definition_scan import log_scanner
from databus.relay.sources.mysql.server.catalog import ServerCatalog
from databus.relay.sources.mysql.server.connection import address_of
from databus.relay.sources.mysql.server.initial_history import rules_of, table_versions
from databus.relay.sources.mysql.server.replica import replica_id
from databus.relay.sources.mysql.server.start_position import Start
from databus.relay.sources.mysql.server.variables import is_mariadb_of
from databus.relay.sources.mysql.tables.alter import TableVersion
from databus.relay.sources.mysql.tables.captured_tables import ScanLog
from databus.relay.sources.mysql.tables.column_spec import Rules
from databus.relay.sources.mysql.tables.ddl import apply_ddl, prepare
from databus.relay.sources.mysql.tables.ddl_tokens import TableName
from databus.relay.sources.mysql.tables.history import History, Record
from databus.relay.sources.mysql.tables.names import Names
from databus.relay.sources.mysql.tables.schema_at import SchemaAt
from databus.schemas.errors import SettingsError, SourceError, UnknownSourceError


def repair_history(
    settings: PhysicalSourceSettings,
    path: Path,
    source: str,
    scn: int,
    text: str | None,
    when_found: Callable[[], None],
) -> Repaired:
    """Set a table's definition from an SCN on, and return it.

    The definition comes from a CREATE TABLE statement, or else from the database as it is
    now. `when_found` is called before the file is written: from then on nobody else may write it.
    Raises SettingsError, UnknownSourceError or SourceError.
    """
    catalog, doubt = ServerCatalog(address_of(settings), settings, scn), ""
    try:
        with catalog.session():
            variables = catalog.variables()
            fold_case = variables.get("lower_case_table_names", "0") != "0"
            names = catalog.names = Names(settings.source_names, fold_case=fold_case)
            history = _existing(path, scn)
            is_mariadb = is_mariadb_of(variables)
            dialect = catalog.dialect(is_mariadb=is_mariadb, zero_dates_are_null=False)
            rules = rules_of(variables, dialect)
            if text is None:
                version = _version_now(catalog, names, source)
                # Checked last, so that statements that ran in the meantime are found too.
                _check_history(history, names, source, scn)
                scan = _scanner(settings, catalog, names, rules)
                doubt = _check_log(catalog, scan, names.keys[source], source, scn)
            else:
                version = _version_of(text, names, source, SchemaAt(history, names, scn), rules)
        when_found()
        history = _existing(path, scn)
        history.add(Record(scn, {names.keys[source]: version}, text="repaired"))
    except ValueError as error:
        raise SettingsError(str(error)) from error
    assert version.definition is not None
    return Repaired(version.definition.table(source), doubt)


def _check_history(history: History, names: Names, source: str, scn: int) -> None:
    later = history.next_change(names.keys[source], scn)
    if later is not None:
        raise ValueError(_altered(source, scn, later))


def _check_log(catalog: ServerCatalog, scan: ScanLog, key: TableName, source: str, scn: int) -> str:
    """Raise ValueError when the log alters the table after an SCN; return what stays unknown."""
    try:
        later = scan(scn, catalog.end_scn()).get(key)
    except (ValueError, SourceError) as error:
        return (
            "it was taken from the database as it is now, which is right only if the table was "
            f"not altered since scn {scn}; the log cannot say whether it was: {error}"
        )
    if later is not None:
        raise ValueError(_altered(source, scn, later))
    return (
        "it was taken from the database as it is now; the log has no statement after scn "
        f"{scn} that alters the table, but does not have what ran with sql_log_bin = 0"
    )


def _altered(source: str, scn: int, later: int) -> str:
    return (
        f"{source} was altered later, at scn {later}: the database as it is now does not say what "
        f"it was at scn {scn}; give --create-table FILE with its CREATE TABLE statement as it "
        "was then"
    )


def _scanner(
    settings: PhysicalSourceSettings, catalog: ServerCatalog, names: Names, rules: Rules
) -> ScanLog:
    # With the configured id, the server would disconnect a relay that runs.
    server_id = replica_id(settings.model_copy(update={"server_id": 0}))

    def open_dump(start: Start) -> BinlogDump:
        is_mariadb = rules.dialect.is_mariadb
        return BinlogDump(
            address_of(settings),
            start,
            server_id,
            source=settings.name,
            is_mariadb=is_mariadb,
            follows=False,
        )

    return log_scanner(names, rules, settings.epoch, catalog.log_files, open_dump)


def _existing(path: Path, scn: int) -> History:
    history = History(path)
    if history.begin_scn is None:
        raise ValueError(f"there is no history of table definitions in {path} yet")
    if scn < history.begin_scn:
        raise ValueError(f"the history in {path} begins at scn {history.begin_scn}")
    return history


def _version_now(catalog: ServerCatalog, names: Names, source: str) -> TableVersion:
    database = names.keys[source][0]
    for name, version in table_versions(catalog, database).items():
        if names.key(name) == names.keys[source]:
            return version
    raise UnknownSourceError(source, [])


def _version_of(
    text: str, names: Names, source: str, schema: SchemaAt, rules: Rules
) -> TableVersion:
    statement = prepare(text, rules)
    if statement.word != "CREATE":
        raise ValueError(f"{text[:80]!r} is no CREATE TABLE statement")
    outcome = apply_ddl(statement, names.keys[source][0], "", schema, rules)
    found = [version for version in outcome.versions.values() if version is not None]
    if len(found) != 1 or found[0].definition is None:
        raise ValueError(f"{text[:80]!r} does not say which columns the table has")
    return found[0]
