"""The reports of a sink's client to its relays, which say how the sink is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from databus.client.sinks.running.feed import FeedStatus, SinkState, describe
from databus.daemon.client_report import MAX_TEXT, ClientReport, SinkReport

# What the report calls them: a client that an error has stopped is suspended.
_STATES = {SinkState.PAUSED: "paused", SinkState.STOPPED: "suspended"}


def with_sink(
    report: ClientReport, sink: SinkReport, statuses: Sequence[FeedStatus], problem: str
) -> ClientReport:
    """Return the report of a client with its sink, and the sink's state and problems.

    `problem` is why it is not known what the sink reads.
    """
    state = SinkState(sink.state)
    problems = {one.source: _problem(one) for one in statuses}
    registrations = [
        one.model_copy(update={"problem": (problems.get(one.name) or one.problem)[:MAX_TEXT]})
        for one in report.registrations
    ]
    told: dict[str, Any] = {"registrations": registrations, "sink": sink}
    if report.state == "running" and state in _STATES:
        told["state"] = _STATES[state]
    if not any(one.problem for one in registrations):
        # Of a source that is not read now, because of its error.
        rest = next(filter(None, problems.values()), problem)
        told["servers_problem"] = (report.servers_problem or rest)[:MAX_TEXT]
    return report.model_copy(update=told)


def _problem(status: FeedStatus) -> str:
    if status.trouble is not None:
        return describe(status.trouble)
    return status.problem
