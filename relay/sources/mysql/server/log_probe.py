"""Queries what the log of a MySQL or MariaDB server still has, with a connection per probe.

The queries are short, and none is of information_schema. The connection is closed at once,
so that a server has one connection of the relay most of the time, not two.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from databus.conf.settings import PhysicalSourceSettings
from databus.relay.sources.log_status import Holding, LogStatus
from databus.relay.sources.mysql.server.catalog import ServerCatalog
from databus.relay.sources.mysql.server.connection import (
    CONNECT_TIMEOUT_S,
    address_of,
    connect,
    driver_errors,
)
from databus.relay.sources.mysql.server.log_retention import (
    KEEPING_VARIABLES,
    Place,
    ServerLog,
    keeping_of,
    log_status_of,
)
from databus.relay.sources.source import Newest
from databus.schemas.errors import SourceStoppedError
from databus.schemas.scn import binlog_position

# Longest wait for one response.
LOOK_TIMEOUT_S = 15.0
_RESETS = "SHOW GLOBAL STATUS LIKE 'Com_reset'"
_RESET_SINCE = "a RESET statement was given to the server, which may have begun its log anew"


class MysqlLogProbe:
    """Probes one server's log."""

    def __init__(self, settings: PhysicalSourceSettings) -> None:
        self._settings = settings
        self._address = address_of(settings)
        self._lock = threading.Lock()
        self._connection: Any = None
        self._is_cancelled = False
        self._resets: int | None = None

    def probe(self, newest: Callable[[], Newest | None]) -> LogStatus:
        """Compare the newest transaction with the server's log; raises SourceError."""
        status, resets = LogStatus(), 0
        # Twice: what is gone may be what capture was reading as the server was asked.
        for _ in range(2):
            place = _place_of(newest(), self._settings.epoch)
            if place is None:
                return LogStatus()
            found = self._ask()
            status = log_status_of(place, found, self._settings.purge_warning_hours)
            resets = found.resets
            if status.holding is not Holding.GONE:
                break
        return self._doubted(status, resets)

    def cancel(self) -> None:
        """Abort a probe that waits for the server."""
        with self._lock:
            self._is_cancelled = True
            if self._connection is not None:
                # Not closed: that would not wake the thread which reads from it.
                with contextlib.suppress(OSError, AttributeError):
                    self._connection._sock.shutdown(socket.SHUT_RDWR)

    def _doubted(self, status: LogStatus, resets: int) -> LogStatus:
        """Add a doubt when there was a reset since the last probe.

        A log that was begun again may have grown to the same position.
        """
        before, self._resets = self._resets, resets
        if status.doubt or before is None or resets <= before:
            return status
        return replace(status, behind_bytes=None, behind_s=None, doubt=_RESET_SINCE)

    def _ask(self) -> ServerLog:
        catalog = ServerCatalog(self._address, self._settings, 0)
        name = self._settings.name
        made: Any = connect(
            self._address, source=name, defer_connect=True, read_timeout=LOOK_TIMEOUT_S
        )
        try:
            with driver_errors(name, 0, f"connecting to {self._address}"):
                host, port = self._address.host, self._address.port
                made._sock = link = socket.create_connection((host, port), CONNECT_TIMEOUT_S)
                # From here on the server may block, also before its greeting.
                self._hold(made)
                made.connect(link)
            with catalog.session(made):
                variables = catalog.variables(KEEPING_VARIABLES)
                files = catalog.log_files()
                ((now_s,),) = catalog.ask("SELECT UNIX_TIMESTAMP()")
                resets = sum(int(count) for _, count in catalog.ask(_RESETS))
        except ValueError as error:
            raise SourceStoppedError(name, 0, str(error)) from error
        finally:
            with self._lock:
                self._connection = None
            made._force_close()
        return ServerLog(files, keeping_of(variables), float(now_s), resets)

    def _hold(self, connection: Any) -> None:
        with self._lock:
            self._connection = connection
            if self._is_cancelled:
                raise SourceStoppedError(self._settings.name, 0, "the look was cancelled")


def _place_of(newest: Newest | None, epoch: int) -> Place | None:
    """Return the position in this server's log; None if there is none or of another server."""
    if newest is None or newest.scn <= 0:
        return None
    position = binlog_position(newest.scn)
    if position.epoch != epoch:
        return None
    return Place(position, newest.timestamp_ns / 1e9)
