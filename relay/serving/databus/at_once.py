"""Answers to `/stream` that are there at once: windows that the ring has, sent as they are stored.

That is nearly every answer of a client that catches up. Everything else is declined, for the
handler to answer: what must be held, rendered, packed or filtered, what goes on with windows to
come, what is to be fetched from an archive or read again from the source's log, and every error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from databus.conf.settings import HttpSettings
from databus.daemon.access import Access, Role, check_permission
from databus.daemon.http.at_once import CHUNK_END, head_of
from databus.daemon.http.requests import (
    Request,
    accepts_gzip,
    accepts_zstd,
    access_headers_of,
    event_parameters_of,
    versions_sent_on,
)
from databus.daemon.http.sending import FilePart
from databus.relay.catch_up.reader import CatchUpReader
from databus.relay.log.archive.away import SegmentAwayError
from databus.relay.log.history import HistoryReader
from databus.relay.monitoring.clients import Caller, caller_of
from databus.relay.relay import Relay
from databus.relay.serving.databus.parameters import StreamRequest, StreamRequests
from databus.relay.serving.databus.read_limits import limited_request
from databus.relay.serving.databus.response_headers import mark_header, response_headers
from databus.relay.serving.reading.request_tracker import RequestTracker, stream_key
from databus.relay.serving.reading.stream import StreamJob, StreamResponse
from databus.schemas.errors import ScnNotFoundError
from databus.schemas.protocol import Header, Parameter
from databus.schemas.rendering import choose_render


def caller_of_request(request: Request) -> Caller:
    """Return the sender of a request."""
    headers = request.headers
    agent, address = headers.get("User-Agent", ""), request.remote_ip or ""
    return caller_of(headers.get(Header.CLIENT_ID), address, agent)


def make_jobs(
    request: StreamRequest, relay: Relay, *, takes_stored: bool = False, from_ring: bool = False
) -> list[StreamJob]:
    """Return what reads each place's rung.

    With `takes_stored` the client takes windows as they lie on disk; with `from_ring` no rung
    below the relay log is read. Raises UnknownSourceError, UnusableSourceError, and
    ScnNotFoundError if it is known that no rung has a place.
    """
    schema_text = relay.registry.text_of
    render = choose_render(request.form, schema_text)
    size_bytes = request.form.size_bytes
    takes_stored = takes_stored and not request.is_together
    jobs = []
    for selection in request.selections:
        source = relay.physical_source(selection.physical_source)
        reader = source.history if from_ring else source.reader_for(selection)
        stored = reader if takes_stored and isinstance(reader, HistoryReader) else None
        spans = source.spans_of(reader)
        jobs.append(StreamJob(reader, selection, size_bytes, render, spans, stored, schema_text))
    return jobs


class StreamAnswer:
    """An answer that was read, and is recorded from its start to its end."""

    def __init__(
        self,
        relay: Relay,
        caller: Caller,
        filters: str,
        job: StreamJob,
        parts: Sequence[bytes | FilePart],
        size_bytes: int,
    ) -> None:
        """`parts` are headers, body and the end of a chunk; `size_bytes` are those of events."""
        self.parts = parts
        self._tracker = RequestTracker(relay, caller)
        self._tracker.asks(filters)
        self._tracker.looks([job])
        self._tracker.serves(size_bytes)

    def end(self) -> None:
        """Record that it was sent, or that the connection is closed."""
        self._tracker.__exit__(None, None, None)


def answer_at_once(
    request: Request, access: Access, arguments: Mapping[str, Any]
) -> StreamAnswer | None:
    """Return the answer to a GET request, or None for the handler; may raise any error."""
    limits: HttpSettings = arguments["limits"]
    relay: Relay = arguments["relay"]
    check_permission(access_headers_of(request), Role.READER, access, limits)
    encodings = request.headers.get("Accept-Encoding", "")
    is_packed = accepts_gzip(encodings)
    if request.version != "HTTP/1.1" or is_packed or versions_sent_on(request):
        return None
    parameters = event_parameters_of(request, limits)
    requests: StreamRequests = arguments["requests"]
    limit = access.limit_of(request.headers.get("Authorization"))
    wanted = limited_request(requests.parse(parameters), limit, relay.catalog)
    if wanted.is_compressed:
        return None
    job, *others = make_jobs(wanted, relay, takes_stored=accepts_zstd(encodings))
    if wanted.is_together or others or not job.copies_bytes:
        return None
    if isinstance(job.reader, CatchUpReader):
        return None
    caller, filters = caller_of_request(request), parameters.get(Parameter.FILTERS, "")
    try:
        job.start()
        if job.position is None or _repeats(relay, caller, filters, job):
            return None
        response = job.step()
    except (SegmentAwayError, ScnNotFoundError):
        return None
    if response is None or not _is_complete(response, wanted, job, relay):
        return None
    body = response.body if response.stored is None else response.stored.file
    sent_bytes = len(body) if isinstance(body, bytes) else body.size_bytes
    headers = response_headers(response) | mark_header(response, wanted, relay)
    head = head_of(request, wanted.form.content_type, headers, sent_bytes)
    parts = (head, body, CHUNK_END)
    return StreamAnswer(relay, caller, filters, job, parts, response.size_bytes)


def _repeats(relay: Relay, caller: Caller, filters: str, job: StreamJob) -> bool:
    """Return whether the client may ask again for windows that it could not use."""
    client = relay.monitor.clients.get(caller.id)
    stream = None if client is None else client.streams.get(stream_key(job.selection, filters))
    if stream is None or job.position is None:
        return False
    return stream.is_in_last_answer(job.position)


def _is_complete(
    response: StreamResponse, wanted: StreamRequest, job: StreamJob, relay: Relay
) -> bool:
    if not response.has_whole_windows:
        return False
    # Before the newest window nothing is waited for: the next request gets the next windows.
    tail = relay.physical_source(job.selection.physical_source).reader.tail
    return not wanted.may_follow or job.read_until < tail
