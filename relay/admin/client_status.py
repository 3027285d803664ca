"""The status of a client: its state and how far each ring is from overwriting its position. Pure.

A client whose position is overwritten has lagged out and must bootstrap. A client's position
is where it would continue after a crash (see `monitoring.clients`): one that is stuck lags
out, however much it has read ahead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from databus.daemon.client_report import ClientReport
from databus.relay.admin.kept_places import BOOTSTRAP_MODES
from databus.relay.admin.models import AwaitedSource, ClientPosition, ClientState, ClientView
from databus.relay.monitoring.clients import MOST_FILTER_TEXT, Client, Stream, StreamKey

LIVE_S = 5.0
FALLING_SHARE = 0.25
FALLING_S = 60.0
# A client with nearly the whole ring left is not in danger, whatever the current rates: a
# client that is woken for each window is always a little behind.
_SAFE_SHARE = 0.9
_HALTED = {"paused": ClientState.PAUSED, "suspended": ClientState.SUSPENDED}


class RingMark(NamedTuple):
    """A ring at one moment; `lasts_s` says how long it takes to write so many bytes."""

    tail: int
    capacity_bytes: int
    newest_scn: int
    newest_ns: int
    lasts_s: Callable[[float], float | None]
    timestamp_at: Callable[[int], int]  # of the event at a position; 0 = overwritten
    waits_for: AwaitedSource | None = None  # the source, while it is not connected
    ring_head: int = 0  # what lies before it is in the relay log


def position_view(name: str, stream: Stream, ring: RingMark, now_s: float) -> ClientPosition:
    """Return a client's position in one ring, and its lag if that is known."""
    found = _position_in_ring(name, stream, ring, now_s)
    if not found.is_gone and stream.position is not None and stream.position < ring.ring_head:
        found = found.model_copy(update={"is_in_log": True})
    has_nearly_all = found.behind_s is not None and found.behind_s < LIVE_S
    if ring.waits_for is None or not has_nearly_all:
        return found
    # While the source is unreachable, its newest window is unknown, and so is the lag.
    return found.model_copy(update={"behind_s": None, "waits_for": ring.waits_for})


def _position_in_ring(name: str, stream: Stream, ring: RingMark, now_s: float) -> ClientPosition:
    if stream.is_gone:
        return _position(name, stream, edge_share=0.0, is_gone=True)
    if stream.position is None:
        if stream.scn is not None and 0 <= ring.newest_scn < stream.scn:
            return _position(name, stream, is_ahead=True)
        has_all = stream.scn is not None and stream.scn >= max(ring.newest_scn, 0)
        if not has_all:
            return _position(name, stream)
        return _position(name, stream, behind_bytes=0, behind_s=0.0, edge_share=1.0)
    behind_bytes = max(0, ring.tail - stream.position)
    room_bytes = max(0, ring.capacity_bytes - behind_bytes)
    share = room_bytes / ring.capacity_bytes
    falls_in_s = None
    if share < _SAFE_SHARE:
        falls_in_s = _falls_in_s(room_bytes, ring, stream.progress.rate(now_s, stream.position))
    behind_s = _behind_s(stream.position, ring)
    if behind_s is None:
        return _position(name, stream, edge_share=0.0, is_gone=True)
    return _position(name, stream, behind_bytes, behind_s, share, falls_in_s)


def _falls_in_s(room_bytes: int, ring: RingMark, read_bytes_per_s: float) -> float | None:
    """Return when a client is overwritten that reads at a rate; None if it keeps up."""
    still_s = ring.lasts_s(room_bytes) if room_bytes else 0.0  # if it read nothing from now on
    if not still_s:
        return still_s
    lost_bytes_per_s = room_bytes / still_s - read_bytes_per_s
    return room_bytes / lost_bytes_per_s if lost_bytes_per_s > 0 else None


def _position(
    name: str,
    stream: Stream,
    behind_bytes: int | None = None,
    behind_s: float | None = None,
    edge_share: float | None = None,
    falls_in_s: float | None = None,
    *,
    is_gone: bool = False,
    is_ahead: bool = False,
) -> ClientPosition:
    scn = stream.scn
    return ClientPosition(
        is_in_source_log=stream.is_in_catch_up,
        physical_source=name,
        by="kept" if stream.is_kept else "asked",
        is_gone=is_gone,
        is_ahead=is_ahead,
        scn=scn if scn is not None and scn >= 0 else None,
        behind_bytes=behind_bytes,
        behind_s=behind_s,
        edge_share=edge_share,
        falls_in_s=falls_in_s,
    )


def _behind_s(position: int, ring: RingMark) -> float | None:
    """Return the age of the next window relative to the newest; None if overwritten."""
    if position >= ring.tail:
        return 0.0
    next_ns = ring.timestamp_at(position)
    return None if next_ns <= 0 else max(0, ring.newest_ns - next_ns) / 1e9


def state_of(
    client: Client, places: Iterable[Stream], positions: list[ClientPosition], now_s: float
) -> ClientState:
    """Return the state of a client as the relay sees it."""
    if client.has_ended:
        return ClientState.STOPPED
    report = client.report if client.has_fresh_report(now_s) else None
    halted = None if report is None else _HALTED.get(report.state)
    if report is not None and _is_bootstrapping(report):
        return halted or ClientState.BOOTSTRAPPING
    if not client.is_heard(now_s):
        return ClientState.SILENT
    if any(stream.is_gone for stream in places):
        return ClientState.FALLEN
    if any(_is_falling(position) for position in positions):
        return ClientState.FALLING
    if halted is not None:
        return halted
    if any(position.is_ahead for position in positions):
        return ClientState.AHEAD
    # The lag is as of its report: it may have consumed more since.
    age_s = now_s - client.reported_s
    if not positions or not all(_has_nearly_all(position, age_s) for position in positions):
        return ClientState.BEHIND
    is_waiting = any(position.waits_for is not None for position in positions)
    return ClientState.WAITING if is_waiting else ClientState.LIVE


def _has_nearly_all(position: ClientPosition, report_age_s: float) -> bool:
    most_s = LIVE_S + (report_age_s if position.by == "kept" else 0.0)
    behind_s = position.behind_s
    return position.waits_for is not None or (behind_s is not None and behind_s < most_s)


def _is_bootstrapping(report: ClientReport) -> bool:
    return any(r.mode in BOOTSTRAP_MODES for r in report.registrations)


def _is_falling(position: ClientPosition) -> bool:
    if position.edge_share is not None and position.edge_share < FALLING_SHARE:
        return True
    return position.falls_in_s is not None and position.falls_in_s < FALLING_S


def client_view(
    client: Client,
    rings: Mapping[str, RingMark],
    names_of: Callable[[StreamKey], Iterable[str]],
    now_s: float,
    wall_s: float,
) -> ClientView:
    """Return the status of a client; `now_s` and `wall_s` are the same moment on two clocks.

    `names_of` returns the names of a stream's sources.
    """
    places = client.places(now_s)
    positions = [
        position_view(name, stream, rings[name], now_s)
        for name, stream in places.items()
        if name in rings
    ]

    state = state_of(client, places.values(), positions, now_s)
    if state in (ClientState.SILENT, ClientState.STOPPED):
        # Its positions are the last known ones; its progress since is unknown.
        positions = [place.model_copy(update={"behind_s": None}) for place in positions]

    def at(then_s: float) -> float:
        return wall_s - (now_s - then_s)

    return ClientView(
        id=client.caller.id,
        name=client.name,
        address=client.caller.address,
        agent=client.caller.agent,
        state=state,
        sources=list(dict.fromkeys(name for key in client.streams for name in names_of(key))),
        filters=_filters(client),
        positions=positions,
        first_seen_at=at(client.first_seen_s),
        last_seen_at=_last_seen_at(client, now_s, wall_s),
        requests=client.requests,
        served_bytes=client.served_bytes,
        bytes_per_s=client.served.rate(now_s, client.served_bytes),
        last_error=client.last_error,
        last_error_at=None if client.last_error_s is None else at(client.last_error_s),
        report=client.report,
    )


def _last_seen_at(client: Client, now_s: float, wall_s: float) -> float | None:
    """Return when it was heard of last; None if it was not since the relay's start."""
    if client.open_requests:
        return wall_s
    return None if math.isinf(client.last_seen_s) else wall_s - (now_s - client.last_seen_s)


def _filters(client: Client) -> str:
    texts = dict.fromkeys(key.filters for key in client.streams if key.filters)
    return "; ".join(texts)[:MOST_FILTER_TEXT]
