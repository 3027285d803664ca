"""Writing a definition into a history by hand, where nobody could follow it."""

from __future__ import annotations

from pathlib import Path

from databus.conf.settings import PhysicalSourceSettings
from databus.relay.sources.mysql.server.catalog import ServerCatalog
from databus.relay.sources.mysql.server.connection import address_of
from databus.relay.sources.mysql.tables.alter import TableVersion
from databus.relay.sources.mysql.tables.beginning import rules_of, table_versions
from databus.relay.sources.mysql.tables.column_spec import Rules
from databus.relay.sources.mysql.tables.ddl import apply_ddl, prepare
from databus.relay.sources.mysql.tables.history import History, Record
from databus.relay.sources.mysql.tables.watched import Names, SchemaAt
from databus.schemas.errors import SettingsError, UnknownSourceError
from databus.schemas.table import Table


def repair_history(
    settings: PhysicalSourceSettings, path: Path, source: str, scn: int, text: str | None
) -> Table:
    """Let a table have a definition from an SCN on; return it.

    The definition is that of a CREATE TABLE statement, or else the database's of now.
    Raises SettingsError, UnknownSourceError or SourceError.
    """
    catalog = ServerCatalog(address_of(settings), settings, scn)
    try:
        with catalog.session():
            variables = catalog.variables()
            fold_case = variables.get("lower_case_table_names", "0") != "0"
            names = catalog.names = Names(settings.source_names, fold_case=fold_case)
            history = _existing(path, scn)
            if text is None:
                version = _version_now(catalog, names, source)
            else:
                is_mariadb = "mariadb" in variables.get("version", "").lower()
                dialect = catalog.dialect(is_mariadb=is_mariadb, zero_dates_are_null=False)
                rules = rules_of(variables, dialect)
                version = _version_of(text, names, source, SchemaAt(history, names, scn), rules)
        history.add(Record(scn, {names.keys[source]: version}, text="repaired"))
    except ValueError as error:
        raise SettingsError(str(error)) from error
    assert version.definition is not None
    return version.definition.table(source)


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
