"""What the API, the metrics and the commands say of running sinks."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from typing import Any, Literal

from pydantic import Field

from databus import __version__
from databus.client.monitoring.reporter import Mode
from databus.client.sinks.contract import Change
from databus.client.sinks.isolated.maker import IsolatedMaker
from databus.client.sinks.running.feed import FeedStatus, SinkState
from databus.client.sinks.running.lane import Trouble
from databus.client.sinks.serving.process import SinkProcess
from databus.client.sinks.serving.reading import Reading
from databus.client.sinks.serving.running_sink import RunningSink
from databus.daemon.http.openapi import ApiModel, Scn
from databus.schemas.event.json import json_value

State = Literal["starting", "running", "paused", "failing", "stopped", "done", "ended"]


class RowView(ApiModel):
    """A row that fails, as the sink gets it: masked columns are masked."""

    id: str = Field(description="Of the change: SCN and index")
    scn: Scn
    op: str
    source: str
    key: Any


class FailureView(ApiModel):
    """What a lane of a sink fails with."""

    problem: str
    attempts: int
    rows: int = Field(description="That wait in the lane")
    is_final: bool = Field(description="It is not tried again until somebody says so")
    row: RowView | None = Field(description="null: which row it is, is not known")


class FeedView(ApiModel):
    """A sink over one physical source."""

    physical_source: str
    state: State
    scn: Scn | None = Field(description="Of the stored position")
    phase: Mode
    server: str = Field(description="That it reads from; empty without one")
    rows: int = Field(description="Written since the process started")
    rows_per_s: float | None
    lag_s: float | None = Field(description="From the commit of the oldest row that is not written")
    lag_windows: int | None = Field(description="null while a relay may have more to read")
    held_rows: int = Field(description="Read, and not written yet")
    held_windows: int
    skipped: int = Field(description="Rows that were skipped since the process started")
    failure: FailureView | None
    problem: str = Field(description="Of reading, or of storing its position")
    alert_s: float | None = Field(description="For how long an alert has said that it fails")


class ReloadView(ApiModel):
    """A source whose rows are written again."""

    source: str
    where: str = Field(description="SQL condition; empty = all rows")
    rows: int = Field(description="Of the snapshot, given to the sink so far")
    problem: str = Field(description="Why it does not get on; empty without a problem")


class EndedReloadView(ApiModel):
    """How the last reload of a source has ended, since the process started."""

    source: str
    is_whole: bool = Field(description="All rows were given to the sink; false: it was cancelled")


class IsolationView(ApiModel):
    """The processes in which the code of a sink runs, one for each lane."""

    ends: dict[str, int] = Field(
        description="How often one has ended though it should not, since the process of sinks "
        "started, by reason: exit, signal, memory, cpu, time, processes, asked, answer"
    )
    last_end: str | None = Field(description="In words; null: none has")


class SinkView(ApiModel):
    """A sink."""

    name: str
    kind: str
    state: State = Field(description="Of the worst of its physical sources")
    is_paused: bool
    sources: list[str] = Field(description="Names and patterns, as in the settings")
    order: str
    lanes: int
    dead_letters: int | None = Field(description="In its file; null if that cannot be read")
    problem: str = Field(description="Why it does not read, or not all that it should")
    isolation: IsolationView | None = Field(description="null: its code runs in this process")
    physical_sources: list[FeedView]
    reloads: list[ReloadView] = Field(description="That have not ended")
    ended_reloads: list[EndedReloadView]


class SinksView(ApiModel):
    """A process that runs sinks."""

    process: int
    version: str
    sinks: list[SinkView]


def sinks_view(process: SinkProcess) -> SinksView:
    """Return how all sinks are."""
    return SinksView(
        process=os.getpid(),
        version=__version__,
        sinks=[sink_view(one) for one in process.sinks],
    )


def problems_of(sink: SinkView) -> list[str]:
    """Return what is wrong with a sink, and with its physical sources."""
    feeds = sink.physical_sources
    of_feeds = (one.failure.problem if one.failure else one.problem for one in feeds)
    return [problem for problem in (sink.problem, *of_feeds) if problem]


def sink_view(sink: RunningSink) -> SinkView:
    """Return how a sink is."""
    settings = sink.plan.settings
    return SinkView(
        name=settings.name,
        kind=settings.kind,
        state=_name(sink.state),
        is_paused=sink.is_paused,
        sources=list(settings.sources),
        order=settings.order,
        lanes=settings.lanes,
        dead_letters=sink.dead_letters.now(),
        problem=sink.problem,
        isolation=_isolation(sink.plan.isolated),
        physical_sources=[_feed(one, sink.reading(one.source)) for one in sink.status],
        reloads=[ReloadView(**asdict(one)) for one in sink.reloads.status],
        ended_reloads=[
            EndedReloadView(source=source, is_whole=is_whole)
            for source, is_whole in sorted(sink.reloads.ends.items())
        ],
    )


def row_view(change: Change) -> RowView:
    """Return which row a change is of."""
    return RowView(
        id=change.id,
        scn=change.scn,
        op=change.op.value,
        source=change.source,
        key=json_value(dict(change.key)),
    )


def _isolation(maker: IsolatedMaker | None) -> IsolationView | None:
    if maker is None:
        return None
    ends = maker.ends
    return IsolationView(ends=dict(ends.counts), last_end=ends.last or None)


def _feed(status: FeedStatus, reading: Reading) -> FeedView:
    rate = status.rows_per_s
    return FeedView(
        physical_source=status.source,
        state=_name(status.state),
        scn=status.scn if status.scn >= 0 else None,
        phase=reading.phase,
        server=reading.server,
        rows=status.rows,
        rows_per_s=None if rate is None else round(rate, 1),
        lag_s=_lag_s(status, reading, time.time()),
        lag_windows=status.held_windows if reading.has_all else None,
        held_rows=status.held_rows,
        held_windows=status.held_windows,
        skipped=status.skipped,
        failure=None if status.trouble is None else _failure(status.trouble),
        problem=status.problem,
        alert_s=status.alert_s,
    )


def _lag_s(status: FeedStatus, reading: Reading, now_s: float) -> float | None:
    if reading.lag_s is None or (status.held_windows and not status.held_since_ns):
        return None
    held_s = now_s - status.held_since_ns / 1e9 if status.held_since_ns else 0.0
    return max(reading.lag_s, held_s)


def _failure(trouble: Trouble) -> FailureView:
    return FailureView(
        problem=trouble.problem,
        attempts=trouble.attempts,
        rows=trouble.rows,
        is_final=trouble.is_final,
        row=None if trouble.change is None else row_view(trouble.change),
    )


def _name(state: SinkState) -> State:
    return state.value
