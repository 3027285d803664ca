"""The screen of `databus top`: the answers of a relay's API, drawn for a terminal. Pure.

The most urgent comes first: clients that have lagged out, then those that soon will. All
lines fit into 80 columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from databus.conf.units import count_text, duration_text, share_text, size_text
from databus.relay.admin.models import (
    ArchiveView,
    ClientPosition,
    ClientState,
    ClientView,
    PhysicalSourceView,
    Problem,
    RelayLogView,
    RelayView,
)
from databus.relay.admin.trouble import Trouble
from databus.relay.cli.top_cluster import ClusterPicture, draw_cluster, lines_of

PROBLEMS_SHOWN = 5
ERRORS_SHOWN = 3  # of clients
LEAST_CLIENTS_SHOWN = 5
# Lines that are always there: titles, headings, gaps.
_FRAME_LINES = 10 + ERRORS_SHOWN
_STATES = {
    ClientState.FALLEN: "bold red",
    ClientState.FALLING: "red",
    ClientState.AHEAD: "red",
    ClientState.SUSPENDED: "red",
    ClientState.BOOTSTRAPPING: "cyan",
    ClientState.PAUSED: "yellow",
    ClientState.BEHIND: "yellow",
    ClientState.SILENT: "dim",
    ClientState.WAITING: "yellow",
    ClientState.LIVE: "green",
    ClientState.STOPPED: "dim",
}
_URGENCY = {state: number for number, state in enumerate(_STATES)}
_CAPTURE = {
    "starting": "yellow",
    "running": "green",
    "silent": "yellow",
    "paused": "yellow",
    "stopped": "yellow",
    "retrying": "red",
    "unreachable": "bold red",
    "error": "bold red",
}
UNKNOWN = "unknown"
HALTS = ("paused", "suspended")
ENDED = (ClientState.SILENT, ClientState.STOPPED)
LOST_CHECKPOINT = "its checkpoint is overwritten: a restart needs a bootstrap"


@dataclass(frozen=True, slots=True)
class Picture:
    """The state of a relay at one moment (`at_s`, Unix seconds)."""

    at_s: float
    relay: RelayView
    sources: Sequence[PhysicalSourceView]
    clients: Sequence[ClientView]
    problems: Sequence[Problem]
    cluster: ClusterPicture | None = None  # of earlier versions nothing is known


def draw(url: str, picture: Picture | None, trouble: str = "", height: int = 0) -> RenderableType:
    """Return the whole screen; `trouble` is the reason if the picture is old.

    `height` in lines limits the number of clients shown; 0 = all of them.
    """
    parts: list[RenderableType] = []
    if trouble:
        parts.append(_cut(f"NO ANSWER: {trouble}; retrying", "bold red"))
    if picture is None:
        return Group(*parts, _cut(f"waiting for {url}", "dim"))
    style = "dim" if trouble else ""
    parts.append(_head(url, picture))
    parts += [_trouble(trouble, picture.at_s) for trouble in picture.relay.troubles]
    parts += ["", _sources(picture.sources, style), *_logs(picture.sources, picture.at_s)]
    parts += _roles_and_warnings(picture.sources)
    cluster = draw_cluster(picture.cluster, picture.at_s, style)
    parts += cluster
    problems = picture.problems[:PROBLEMS_SHOWN]
    logs = sum(source.relay_log is not None for source in picture.sources)
    roles = sum(source.role is not None for source in picture.sources)
    lines = (
        len(picture.sources)
        + logs
        + roles
        + len(problems)
        + 3 * len(picture.relay.troubles)
        + _FRAME_LINES
        + lines_of(cluster)
    )
    # The rest of the screen is for clients, but always for a few of them.
    most = max(LEAST_CLIENTS_SHOWN, height - lines) if height else len(picture.clients)
    parts += ["", *_clients(picture.clients, most, style)]
    if problems:
        parts += ["", _cut("problems, the newest first", "bold"), *map(_problem, problems)]
    return Group(*parts)


def _head(url: str, picture: Picture) -> Text:
    relay = picture.relay
    health = ("healthy", "green") if relay.is_healthy else ("NOT HEALTHY", "bold red")
    head = Text.assemble(
        ("databus top ", "bold"),
        f"{url} {relay.version}, up {duration_text(max(0.0, picture.at_s - relay.started_at))}, ",
        health,
        f"\n{datetime.fromtimestamp(picture.at_s):%H:%M:%S}  {relay.clients} clients, "
        f"{relay.held_requests} requests held, "
        f"{size_text(relay.served_bytes_per_s)}/s served",
    )
    head.no_wrap, head.overflow = True, "ellipsis"
    return head


def _sources(sources: Sequence[PhysicalSourceView], style: str) -> Table:
    table = _table("database", "state", style=style)
    for name in ("rows/s", "bytes/s", "lag", "unread", "ring", "may pause"):
        table.add_column(name, justify="right", no_wrap=True)
    for source in sources:
        ring, log = source.ring, source.log
        table.add_row(
            source.name,
            Text(word := _word(source), _CAPTURE.get(word, "")),
            count_text(source.events_per_s),
            size_text(source.bytes_per_s),
            UNKNOWN if source.delay_s is None else duration_text(source.delay_s),
            UNKNOWN if log.behind_bytes is None else size_text(log.behind_bytes),
            share_text(ring.used_bytes / ring.capacity_bytes if ring.capacity_bytes else 0),
            "-" if ring.sleep_s is None else duration_text(ring.sleep_s),
        )
    return table


def _word(source: PhysicalSourceView) -> str:
    is_silent = source.state == "running" and not source.is_connected
    return "silent" if is_silent else source.state


def _trouble(trouble: Trouble, now_s: float) -> Text:
    """Return a trouble as one line: source, state, since when, next try, cause."""
    since = (
        "" if trouble.since is None else f" since {datetime.fromtimestamp(trouble.since):%H:%M:%S}"
    )
    next_s = None if trouble.next_try_at is None else max(0.0, trouble.next_try_at - now_s)
    then = "" if next_s is None else f" (next try in {duration_text(next_s)})"
    text = " ".join(trouble.text.split())
    name = f"{trouble.physical_source} is {trouble.state}{since}{then}"
    return Text(f"{name}: {text}", "bold red")


def _logs(sources: Sequence[PhysicalSourceView], now_s: float) -> list[RenderableType]:
    """Return what each relay log holds, as one line."""
    return [
        _cut(f"{source.name}: {_log_words(source.relay_log, now_s)}", "dim")
        for source in sources
        if source.relay_log is not None
    ]


def _log_words(log: RelayLogView, now_s: float) -> str:
    waits_s = log.capture_waits_s
    waits = "" if waits_s is None else f"; capture has waited {duration_text(waits_s)} for it"
    if log.oldest_at is None:
        return f"relay log is empty{waits}"
    reach = duration_text(max(0.0, now_s - log.oldest_at))
    share = share_text(min(1.0, log.retention_share))
    size = size_text(log.size_bytes)
    kept = f"relay log reaches back {reach}, {size}, {share} of what is kept{waits}"
    return f"{kept}{_archive_words(log.archive, now_s)}"


def _archive_words(archive: ArchiveView | None, now_s: float) -> str:
    if archive is None:
        return ""
    if archive.problem:
        return f"; {archive.waiting_segments} segments wait for the archive"
    if archive.oldest_at is None:
        return "; archive is empty" if archive.is_known else "; archive was not listed yet"
    reach = duration_text(max(0.0, now_s - archive.oldest_at))
    return f"; archive reaches back {reach}, {size_text(archive.size_bytes)}"


def _roles_and_warnings(sources: Sequence[PhysicalSourceView]) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for source in sources:
        if source.role is not None:
            lines.append(_cut(f"{source.name}: {source.role.words}", "dim"))
        if source.log.warning:
            lines.append(_cut(f"{source.name}: {source.log.warning}", "yellow"))
        if source.drain is not None:
            waiting = ", ".join(source.drain.waiting_for) or "no consumer"
            lines.append(_cut(f"{source.name}: draining, waits for {waiting}", "cyan"))
    return lines


def _clients(clients: Sequence[ClientView], most: int, style: str) -> list[RenderableType]:
    if not clients:
        return [_cut("no recent clients", "dim")]
    table = _table("client", "state", style=style)
    for name in ("behind", "left", "lost in", "bytes/s"):
        table.add_column(name, justify="right", no_wrap=True)
    shown = sorted(clients, key=lambda one: (_URGENCY[one.state], one.name))[:most]
    for client in shown:
        place = worst_position(client.positions)
        table.add_row(
            client.name or client.id,
            Text(state_words(client), _STATES[client.state]),
            UNKNOWN if client.state in ENDED else _behind(place),
            "-" if place is None or place.edge_share is None else share_text(place.edge_share),
            "-" if place is None or place.falls_in_s is None else duration_text(place.falls_in_s),
            size_text(client.bytes_per_s),
        )
    rest = len(clients) - len(shown)
    more = [_cut(f"and {rest} more clients in better states", "dim")] if rest else []
    said = [_cut(f"{one.name or one.id}: {text}", "red") for one in shown if (text := _wrong(one))]
    return [table, *more, *said[:ERRORS_SHOWN]]


def state_words(client: ClientView) -> str:
    """Return a client's state, with "paused" or "suspended" if it is lagging out as well."""
    state = client.state.value
    halt = "" if client.report is None else client.report.state
    # A paused client lags out all the same, and both facts matter.
    is_both = client.state in (ClientState.FALLING, ClientState.FALLEN) and halt in HALTS
    return f"{state}, {halt}" if is_both else state


def _wrong(client: ClientView) -> str:
    """Return a client's problem; "" without one."""
    if client.state in (ClientState.LIVE, ClientState.STOPPED):
        return ""
    if any(place.by == "kept" and place.is_gone for place in client.positions):
        return LOST_CHECKPOINT
    # A client that reports says when an error is over.
    return client.last_error if client.report is None else client.report.problem


def worst_position(positions: Sequence[ClientPosition]) -> ClientPosition | None:
    """Return the position that will be overwritten first; None without positions."""

    def distance(position: ClientPosition) -> float:
        return 1.0 if position.edge_share is None else position.edge_share

    return min(positions, key=distance, default=None)


def _behind(place: ClientPosition | None) -> str:
    if place is None:
        return "-"
    if place.waits_for is not None:
        return UNKNOWN
    if place.behind_s is not None:
        return duration_text(place.behind_s)
    return UNKNOWN if place.behind_bytes is None else size_text(place.behind_bytes)


def _problem(problem: Problem) -> Text:
    where = problem.client or problem.physical_source or "relay"
    times = f" ({problem.count} times)" if problem.count > 1 else ""
    at = "" if problem.scn is None else f" scn {problem.scn}"
    text = " ".join(problem.text.split())
    return _cut(f"{datetime.fromtimestamp(problem.at):%H:%M:%S} {where}{at}{times}: {text}", "red")


def _table(first: str, second: str, style: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold", style=style)
    table.add_column(first, no_wrap=True, overflow="ellipsis", min_width=12, max_width=26)
    table.add_column(second, no_wrap=True)
    return table


def _cut(text: str, style: str) -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")
