"""What is told of a client: its state and its distance to the edge of each ring. Pure.

The edge is what the writer will overwrite next: a client whose place it reaches
has lost it, and must bootstrap. A client's place is where it would go on after a
crash, see `monitoring.clients`: one that is stuck falls, however much it has read ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from databus.daemon.client_report import ClientReport
from databus.relay.admin.kept_places import BOOTSTRAP_MODES
from databus.relay.admin.models import AwaitedSource, ClientPosition, ClientState, ClientView
from databus.relay.monitoring.clients import MOST_FILTER_TEXT, Client, Stream, StreamKey

LIVE_S = 5.0
FALLING_SHARE = 0.25
FALLING_S = 60.0
# A client that has nearly all of the ring before it does not fall, whatever the rates of a
# moment say: somebody who is woken for each window is always a little behind.
_SAFE_SHARE = 0.9
_HALTED = {"paused": ClientState.PAUSED, "suspended": ClientState.SUSPENDED}


class RingMark(NamedTuple):
    """A ring at one moment; `written_bytes_per_s` is of the last seconds."""

    tail: int
    capacity_bytes: int
    newest_scn: int
    newest_ns: int
    written_bytes_per_s: float
    timestamp_at: Callable[[int], int]  # of the event at a position; 0 = it is gone
    waits_for: AwaitedSource | None = None  # the source, while nothing is heard of it


def position_view(name: str, stream: Stream, ring: RingMark, now_s: float) -> ClientPosition:
    """Return how far a client is in one ring, and behind the source as far as that is known."""
    found = _position_in_ring(name, stream, ring, now_s)
    has_nearly_all = found.behind_s is not None and found.behind_s < LIVE_S
    if ring.waits_for is None or not has_nearly_all:
        return found
    # The newest window of the ring may be an old one of the source: nobody knows.
    return found.model_copy(update={"behind_s": None, "waits_for": ring.waits_for})


def _position_in_ring(name: str, stream: Stream, ring: RingMark, now_s: float) -> ClientPosition:
    if stream.is_gone:
        return _position(name, stream, edge_share=0.0, is_gone=True)
    if stream.position is None:
        # It has all there is, or waits for what is yet to come.
        has_all = stream.scn is not None and stream.scn >= max(ring.newest_scn, 0)
        if not has_all:
            return _position(name, stream)
        return _position(name, stream, behind_bytes=0, behind_s=0.0, edge_share=1.0)
    behind_bytes = max(0, ring.tail - stream.position)
    room_bytes = max(0, ring.capacity_bytes - behind_bytes)
    share = room_bytes / ring.capacity_bytes
    read = stream.progress.rate(now_s, stream.position)
    lost_bytes_per_s = ring.written_bytes_per_s - read
    falls_in_s = None
    if share < _SAFE_SHARE and lost_bytes_per_s > 0:
        falls_in_s = room_bytes / lost_bytes_per_s
    behind_s = _behind_s(stream.position, ring)
    if behind_s is None:
        return _position(name, stream, edge_share=0.0, is_gone=True)
    return _position(name, stream, behind_bytes, behind_s, share, falls_in_s)


def _position(
    name: str,
    stream: Stream,
    behind_bytes: int | None = None,
    behind_s: float | None = None,
    edge_share: float | None = None,
    falls_in_s: float | None = None,
    *,
    is_gone: bool = False,
) -> ClientPosition:
    scn = stream.scn
    return ClientPosition(
        physical_source=name,
        by="kept" if stream.is_kept else "asked",
        is_gone=is_gone,
        scn=scn if scn is not None and scn >= 0 else None,
        behind_bytes=behind_bytes,
        behind_s=behind_s,
        edge_share=edge_share,
        falls_in_s=falls_in_s,
    )


def _behind_s(position: int, ring: RingMark) -> float | None:
    """Return how much older what comes next is than the newest; None when it is gone."""
    if position >= ring.tail:
        return 0.0
    next_ns = ring.timestamp_at(position)
    return None if next_ns <= 0 else max(0, ring.newest_ns - next_ns) / 1e9


def state_of(
    client: Client, places: Iterable[Stream], positions: list[ClientPosition], now_s: float
) -> ClientState:
    """Return where a client is, as seen from here."""
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
    # As of its report: what was committed since it may have, and could not say yet.
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
    """Return what is told of a client; `now_s` and `wall_s` are one moment on two clocks.

    `names_of` gives the names of the sources that a stream has.
    """
    places = client.places(now_s)
    positions = [
        position_view(name, stream, rings[name], now_s)
        for name, stream in places.items()
        if name in rings
    ]

    state = state_of(client, places.values(), positions, now_s)
    if state is ClientState.SILENT:
        # Its place is the last that was heard of. What it has done since nobody knows.
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
        last_seen_at=at(now_s if client.open_requests else client.last_seen_s),
        requests=client.requests,
        served_bytes=client.served_bytes,
        bytes_per_s=client.served.rate(now_s, client.served_bytes),
        last_error=client.last_error,
        last_error_at=None if client.last_error_s is None else at(client.last_error_s),
        report=client.report,
    )


def _filters(client: Client) -> str:
    texts = dict.fromkeys(key.filters for key in client.streams if key.filters)
    return "; ".join(texts)[:MOST_FILTER_TEXT]
