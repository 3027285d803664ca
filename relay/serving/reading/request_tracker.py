"""Records the sender, progress and result of a stream request."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from databus.relay.catch_up.reader import CatchUpReader
from databus.relay.monitoring.clients import MOST_FILTER_TEXT, Caller, Stream, StreamKey
from databus.relay.relay import Relay
from databus.relay.ring.selection import Selection
from databus.relay.serving.reading.stream import StreamJob
from databus.schemas.errors import DatabusError, ScnNotFoundError


class RequestTracker:
    """Records one request from start to end; a context manager."""

    def __init__(self, relay: Relay, caller: Caller) -> None:
        self._relay = relay
        self._clients = relay.monitor.clients
        self._filters = ""
        self._jobs: Sequence[StreamJob] = ()
        self._streams: Sequence[Stream] = ()
        self._client = self._clients.begin(caller, self._now_s())

    @property
    def client_id(self) -> str:
        """The id of the sender."""
        return self._client.caller.id

    def __enter__(self) -> RequestTracker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        now_s = self._now_s()
        if isinstance(error, DatabusError):
            self._clients.failed(self._client, now_s, str(error))
            if isinstance(error, ScnNotFoundError):
                self._relay.traffic.not_found()
                self._fell()
                self._note(error)
            elif error.status >= 500:
                self._note(error)
        self._clients.end(self._client, now_s)

    def asks(self, filters: str) -> None:
        """Record that the request is valid, and its filters as they were sent."""
        self._relay.traffic.asked()
        self._filters = filters

    def looks(self, jobs: Sequence[StreamJob]) -> None:
        """Record the ring positions at which it begins to read, and each time it is woken."""
        is_first, self._jobs = not self._jobs, jobs
        now_s = self._now_s()
        self._streams = [
            self._client.stream(stream_key(job.selection, self._filters), now_s) for job in jobs
        ]
        for job, stream in zip(jobs, self._streams, strict=True):
            if is_first:
                self._doubt(job, stream)
                stream.read_from = None
            stream.is_in_catch_up = isinstance(job.reader, CatchUpReader)
            # Positions in a catch-up are not those of the ring.
            position = None if stream.is_in_catch_up else job.position
            if stream.read_from is None:
                stream.read_from = position
            begin = job.begin
            stream.scn, offset = (None, -1) if begin is None else begin
            stream.is_inside = offset >= 0
            if stream.began is None or stream.is_gone:
                stream.began = position
            stream.position = position
            stream.is_gone = False

    def serves(self, size_bytes: int) -> None:
        """Record the size of the answer, or of the next part of it."""
        self._relay.traffic.served(size_bytes)
        self._client.served_bytes += size_bytes
        for job, stream in zip(self._jobs, self._streams, strict=True):
            stream.read_until = -1 if stream.is_in_catch_up else job.read_until

    def goes_on(self, job: StreamJob) -> None:
        """Record where the answer, which has one job, is continued."""
        self._jobs, (stream,) = (job,), self._streams
        stream.asked_s = self._now_s()
        stream.scn = None if job.begin is None else job.begin[0]
        stream.is_inside = False
        stream.position = job.position

    def _doubt(self, job: StreamJob, stream: Stream) -> None:
        """Check the windows of the last answer again if the client requests them again.

        Their bytes may be damaged: windows written since the start, or checked once, are
        normally sent without another check.
        """
        position = None if isinstance(job.reader, CatchUpReader) else job.position
        if position is not None and stream.comes_back(position, self._now_s()):
            reader = self._relay.physical_source(job.selection.physical_source).reader
            reader.check.distrust(position, stream.read_until)
        stream.read_until = -1

    def _fell(self) -> None:
        lost = [job for job in self._jobs if job.position is None] or self._jobs
        for job in lost:
            key = stream_key(job.selection, self._filters)
            stream = self._client.stream(key, self._now_s())
            stream.scn = None if job.begin is None else job.begin[0]
            stream.position, stream.is_gone = None, True

    def _note(self, error: DatabusError) -> None:
        names = dict.fromkeys(job.selection.physical_source for job in self._jobs)
        at = self._relay.clock.wall_ns() / 1e9
        self._relay.monitor.problems.note(at, ", ".join(names), error, self._client.name)

    def _now_s(self) -> float:
        return self._relay.clock.monotonic_s()


def stream_key(selection: Selection, filters: str) -> StreamKey:
    """Return the identity of a request's stream; `filters` are as they were sent."""
    return StreamKey(selection.physical_source, selection.src_ids, filters[:MOST_FILTER_TEXT])
