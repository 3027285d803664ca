"""The monitoring endpoints of a Ptubes reader, for those who watch one already."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from databus import __version__
from databus.conf.settings import HttpSettings
from databus.relay.relay import Relay
from databus.relay.serving.ptubes.http_requests import Request
from databus.relay.serving.ptubes.opening import SessionOpener
from databus.relay.serving.ptubes.reader_tasks import ReaderTask
from databus.relay.serving.ptubes.routes import JSON_TYPE, Answer, Caller, check_reader
from databus.relay.serving.ptubes.traffic import OpenSession, Sessions
from databus.schemas.errors import DatabusError


class MonitorRoutes:
    """The requests of the port for monitoring: read only."""

    def __init__(
        self, relay: Relay, opener: SessionOpener, sessions: Sessions, http: HttpSettings
    ) -> None:
        self._relay, self._opener = relay, opener
        self._sessions, self._http = sessions, http
        self._started_s = relay.clock.wall_ns() / 1e9

    async def answer(self, request: Request, _caller: Caller, *, is_busy: bool) -> Answer:  # noqa: ARG002
        """Return the answer to a request."""
        try:
            check_reader(request, self._http)
        except DatabusError as error:
            return Answer(str(error).encode(), closes=True)
        match request.path:
            case "/monitor/alive":
                return Answer(b"OK")
            case "/v1/basicInfo":
                return _json(self._basic())
            case "/v1/containerInfo":
                return _json(self._container())
            case "/v1/clientSessionInfo":
                return _json([_session_view(one) for one in self._sessions])
            case "/v1/readerTaskInfo":
                return _json([self._task_view(task) for task in self._opener.tasks.values()])
            case "/v1/readerTaskRuntimeConf":
                return _json(self._configuration(request))
        return Answer(b"Bye", closes=True)

    def _basic(self) -> dict[str, Any]:
        return {
            "version": __version__,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "startedAt": self._started_s,
        }

    def _container(self) -> dict[str, Any]:
        return {
            "readerTasks": sorted(self._opener.tasks),
            "sessions": len(self._sessions),
            "heldBytes": self._sessions.held_bytes,
            "sentBytes": self._sessions.bytes_sent,
            "sentEvents": self._sessions.events_sent,
        }

    def _task_view(self, task: ReaderTask) -> dict[str, Any]:
        view: dict[str, Any] = {
            "readerTask": task.name,
            "physicalSource": task.physical_source,
            "clients": self._sessions.tasks_of(task.name),
        }
        try:
            source = self._relay.physical_source(task.physical_source)
        except DatabusError as error:
            return view | {"status": "ERROR", "message": str(error)}
        extent, capture = source.history.extent(), source.capture.status
        return view | {
            "status": capture.state.value,
            "oldestScn": str(extent.min_scn),
            "newestScn": str(source.reader.max_scn),
        }

    def _configuration(self, request: Request) -> Any:
        name = request.query.get("taskName", "")
        is_all = request.query.get("allTask", "").lower() == "true"
        return [
            {
                "readerTask": task.name,
                "physicalSource": task.physical_source,
                "tables": sorted(task.src_ids),
                "keyColumns": {
                    task.tables[src_id]: list(key) for src_id, key in task.key_columns.items()
                },
            }
            for task in self._opener.tasks.values()
            if is_all or task.name == name
        ]


def _session_view(one: OpenSession) -> dict[str, Any]:
    session, wanted = one.session, one.session.wanted
    return {
        "taskName": wanted.task,
        "readerTask": wanted.reader_task,
        "address": one.address,
        "tables": sorted(wanted.tables),
        "partitionTotal": wanted.partitions,
        "partitionSet": sorted(wanted.owned),
        "scn": str(session.scn),
        "sentEvents": session.events_sent,
        "sentBytes": session.bytes_sent,
        "heldBytes": session.held_bytes,
    }


def _json(value: Any) -> Answer:
    return Answer(json.dumps(value, separators=(",", ":")).encode(), JSON_TYPE)
