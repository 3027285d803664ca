"""MySQL and MariaDB as a kind of source.

Each function imports what it needs: a Spark task that scans a table does not pay for the binlog
decoder and the doctor.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from databus.conf.settings import PhysicalSourceSettings
from databus.relay.sources.kind import (
    CheckRequest,
    Repaired,
    RepairRequest,
    RereadPlace,
    RereadRequest,
    SourceKind,
    history_path,
)
from databus.schemas.errors import UnknownSourceError
from databus.schemas.table import Table

if TYPE_CHECKING:
    from databus.doctor.checks import Check
    from databus.relay.sources.mysql.scan.tables import MysqlTableScan
    from databus.relay.sources.mysql.server.log_probe import MysqlLogProbe
    from databus.relay.sources.mysql.source import MysqlSource


def _open(settings: PhysicalSourceSettings, data_dir: Path | None) -> MysqlSource:
    from databus.relay.sources.mysql.source import MysqlSource

    history = None if data_dir is None else history_path(settings, data_dir)
    return MysqlSource(settings, history=history)


def _check(request: CheckRequest) -> list[Check]:
    from databus.relay.sources.mysql.doctor import check_server

    return check_server(request)


def _read_columns(settings: PhysicalSourceSettings, source: str) -> Table:
    from databus.relay.sources.mysql.server.catalog import ServerCatalog
    from databus.relay.sources.mysql.server.connection import address_of
    from databus.relay.sources.mysql.tables.names import Names

    catalog = ServerCatalog(address_of(settings), settings, 0)
    catalog.names = Names((source,))
    definition = catalog.definition(source)
    if definition is None:
        raise UnknownSourceError(source, [])
    return definition.table(source)


def _scan(settings: PhysicalSourceSettings) -> MysqlTableScan:
    from databus.relay.sources.mysql.scan.tables import MysqlTableScan

    return MysqlTableScan(settings)


def _probe_log(settings: PhysicalSourceSettings) -> MysqlLogProbe:
    from databus.relay.sources.mysql.server.log_probe import MysqlLogProbe

    return MysqlLogProbe(settings)


def _repair_history(
    settings: PhysicalSourceSettings, data_dir: Path, request: RepairRequest
) -> Repaired:
    from databus.relay.sources.mysql.history_repair import repair_history

    source, scn, create_table, when_found = request
    path = history_path(settings, data_dir)
    return repair_history(settings, path, source, scn, create_table, when_found)


def _prepare_reread(settings: PhysicalSourceSettings, request: RereadRequest) -> RereadPlace:
    from databus.relay.sources.mysql.reread import prepare_reread

    second = settings.model_copy(update={"name": request.name})
    kept = history_path(settings, request.data_dir)
    return prepare_reread(settings, request, kept, history_path(second, request.folder))


KIND = SourceKind(
    open=_open,
    check=_check,
    read_columns=_read_columns,
    scan=_scan,
    probe_log=_probe_log,
    repair_history=_repair_history,
    prepare_reread=_prepare_reread,
    digest="databus.client.spark.verify.mysql_table:MysqlTable",
)
