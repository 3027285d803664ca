"""The JSON API of a process that runs sinks: how they are, pause, resume, skip, retry, reload."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pydantic import Field

from databus.client.sinks.errors import SinkError
from databus.client.sinks.serving.process import SinkProcess
from databus.client.sinks.serving.views import (
    RowView,
    SinksView,
    SinkView,
    row_view,
    sink_view,
    sinks_view,
)
from databus.daemon.access import Role
from databus.daemon.http.openapi import ApiModel, Call, Endpoint, with_document
from databus.schemas.errors import ControlRefusedError, SettingsError

ROOT = "/api/v1/sinks"
TITLE = "Databus sinks"
DESCRIPTION = "The sinks of one process. SCNs are strings of digits. null = not known."
_ONE = f"{ROOT}/{{name}}"
_NO_SUCH = {404: "This process runs no such sink"}
_REFUSED = {**_NO_SUCH, 409: "It is not possible now; the message says why"}


class SkipBody(ApiModel):
    """The row to drop: the one that fails, as `GET` has shown it."""

    physical_source: str = Field(max_length=300)
    id: str = Field(min_length=1, max_length=500)


class FindBody(ApiModel):
    """Where to look for the row that fails."""

    physical_source: str = Field(max_length=300)


class ReloadBody(ApiModel):
    """Which rows to write again."""

    source: str = Field(min_length=1, max_length=300)
    where: str = Field(default="", max_length=10_000, description="SQL condition; empty = all rows")


class CancelBody(ApiModel):
    """Which reload to end."""

    source: str = Field(min_length=1, max_length=300)


class Skipped(ApiModel):
    """What was dropped."""

    row: RowView


def endpoints(process: SinkProcess) -> list[Endpoint]:
    """Return the table of endpoints."""

    async def show_all(_call: Call) -> SinksView:
        return sinks_view(process)

    def after(do: Callable[[str], object]) -> Callable[[Call], Awaitable[SinkView]]:
        async def answer(call: Call) -> SinkView:
            name = call.path["name"]
            do(name)
            return sink_view(process.sink(name))

        return answer

    acts = (
        ("pause", "Read and write nothing more, also after a restart", process.pause),
        ("resume", "Go on after a pause", process.resume),
        ("retry", "Try again now, also after the last retry", lambda n: process.sink(n).retry()),
    )
    found = [
        Endpoint("GET", ROOT, "All sinks of the process", SinksView, show_all),
        Endpoint("GET", _ONE, "One sink", SinkView, after(process.sink), errors=_NO_SUCH),
        *(
            Endpoint(
                *("POST", f"{_ONE}/{name}", text, SinkView, after(do)),
                role=Role.ADMIN,
                errors=_NO_SUCH,
            )
            for name, text, do in acts
        ),
        *_row_endpoints(process),
        *_reload_endpoints(process),
    ]
    return with_document(found, TITLE, DESCRIPTION)


def _row_endpoints(process: SinkProcess) -> list[Endpoint]:
    async def skip(call: Call) -> Skipped:
        return _skipped(process, call.path["name"], call.body)

    async def find_row(call: Call) -> SinkView:
        sink = process.sink(call.path["name"])
        try:
            sink.find_row(call.body.physical_source)
        except SinkError as error:
            raise ControlRefusedError(str(error)) from error
        return sink_view(sink)

    return [
        Endpoint(
            *("POST", f"{_ONE}/skip", "Drop the row that fails, and no other", Skipped, skip),
            role=Role.ADMIN,
            body=SkipBody,
            errors=_REFUSED,
        ),
        Endpoint(
            *("POST", f"{_ONE}/find-row", "Look for the row that fails", SinkView, find_row),
            role=Role.ADMIN,
            body=FindBody,
            errors=_REFUSED,
        ),
    ]


def _reload_endpoints(process: SinkProcess) -> list[Endpoint]:
    async def reload(call: Call) -> SinkView:
        sink, body = process.sink(call.path["name"]), call.body
        try:
            sink.reloads.add(body.source, body.where)
        except (SinkError, SettingsError) as error:
            raise ControlRefusedError(str(error)) from error
        return sink_view(sink)

    async def cancel_reload(call: Call) -> SinkView:
        sink, source = process.sink(call.path["name"]), call.body.source
        if not sink.reloads.cancel(source):
            raise ControlRefusedError(f"{sink.plan.name}: no reload of {source} runs")
        return sink_view(sink)

    return [
        Endpoint(
            *("POST", f"{_ONE}/reload", "Write all rows of a source again", SinkView, reload),
            role=Role.ADMIN,
            body=ReloadBody,
            errors=_REFUSED,
        ),
        Endpoint(
            *("POST", f"{_ONE}/cancel-reload", "End a reload", SinkView, cancel_reload),
            role=Role.ADMIN,
            body=CancelBody,
            errors=_REFUSED,
        ),
    ]


def _skipped(process: SinkProcess, name: str, body: SkipBody) -> Skipped:
    try:
        change = process.sink(name).skip_row(body.physical_source, body.id)
    except SinkError as error:
        raise ControlRefusedError(str(error)) from error
    assert change is not None  # its id was given
    return Skipped(row=row_view(change))
