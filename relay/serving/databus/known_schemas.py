"""Where a response ends for a client that lacks a schema version.

LinkedIn's client fetches schemas once per connection and fails at an event of a version that was
registered later. So on a connection that has fetched schemas, a response ends with the last
window before such a version. Then the connection is closed: the client connects again and
fetches the schemas again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from databus.relay.relay import Relay
from databus.relay.ring.event_selector import WINDOW_DONE
from databus.relay.ring.selection import Selection
from databus.relay.serving.databus.parameters import StreamRequest
from databus.relay.serving.reading.multi_source_stream import MultiSourceResponse
from databus.relay.serving.reading.stream import StreamResponse
from databus.schemas.scn import MAX_SCN

Ends = Mapping[str, int]  # the SCN of the last window that may be sent, by physical source


def find_ends(request: StreamRequest, versions: Mapping[int, int], relay: Relay) -> Ends:
    """Return the ends for a client that has these versions, the newest by src_id.

    A source whose schemas were not fetched on the connection sets no end: its client has them
    from elsewhere.
    """
    found = {}
    for selection in request.selections:
        if selection.from_latest:  # begins after all that there is
            continue
        starts = [
            version.start_scn
            for name, src_id in relay.catalog.src_ids_of(selection.physical_source).items()
            if src_id in versions and _is_wanted(selection, src_id)
            for version in relay.registry.versions(name)
            if version.version > versions[src_id]
        ]
        if starts:
            found[selection.physical_source] = min(starts) - 1
    return found


def end_at(request: StreamRequest, ends: Ends) -> StreamRequest:
    """Return the request, with no window wanted after the ends."""
    selections = tuple(
        replace(s, until_scn=min(s.until_scn, ends.get(s.physical_source, MAX_SCN)))
        for s in request.selections
    )
    return replace(request, selections=selections)


def respond_past(
    request: StreamRequest, ends: Ends, relay: Relay
) -> StreamResponse | MultiSourceResponse | None:
    """Return an empty response if the request begins after an end; else None."""
    if not any(_is_past(selection, ends, relay) for selection in request.selections):
        return None
    places = {
        s.physical_source: (s.checkpoint.window_scn, s.checkpoint.window_offset)
        for s in request.selections
        if not s.checkpoint.is_flexible
    }
    if request.is_together:
        return MultiSourceResponse(b"", places)
    return StreamResponse(b"", next(iter(places.values()), None))


def reaches_end(response: StreamResponse | MultiSourceResponse, ends: Ends) -> bool:
    """Return whether a response ends where the client's schemas do."""
    if isinstance(response, MultiSourceResponse):
        resumes = response.resume
        return any(resumes.get(name) == (scn, WINDOW_DONE) for name, scn in ends.items())
    return any(response.resume == (scn, WINDOW_DONE) for scn in ends.values())


def _is_wanted(selection: Selection, src_id: int) -> bool:
    return selection.src_ids is None or src_id in selection.src_ids


def _is_past(selection: Selection, ends: Ends, relay: Relay) -> bool:
    end = ends.get(selection.physical_source)
    if end is None:
        return False
    if selection.checkpoint.is_flexible:
        source = relay.physical_source(selection.physical_source)
        first = source.spans.of(selection.src_ids).first
        return source.history.min_scn > end or first.scn > end
    return selection.checkpoint.window_scn > end
