"""The commands of the Databus protocol over HTTP, and a few more, in the table `COMMANDS`.

Handlers are thin: parse the parameters (which raises), call the code that knows, write the
answer. Ring reads run on the loop itself: each is a bounded memory copy, far cheaper than
passing it to a thread.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from databus.conf.settings import HttpSettings
from databus.daemon.access import Role
from databus.daemon.http.encoding import BodyEncoder, encode_body
from databus.daemon.http.handlers import FIRST_BYTES
from databus.daemon.http.requests import accepts_gzip, accepts_zstd
from databus.relay.physical_source import PhysicalSource
from databus.relay.relay import Relay
from databus.relay.serving.databus.at_once import answer_at_once, caller_of_request, make_jobs
from databus.relay.serving.databus.follower import Follower
from databus.relay.serving.databus.known_schemas import (
    end_at,
    find_ends,
    reaches_end,
    respond_past,
)
from databus.relay.serving.databus.parameters import (
    StreamRequest,
    StreamRequests,
    parse_source_list,
)
from databus.relay.serving.databus.planning_handlers import MeasureHandler, SegmentsHandler
from databus.relay.serving.databus.read_limits import check_ids, limited_request, readable
from databus.relay.serving.databus.relay_handler import RelayHandler
from databus.relay.serving.databus.response_headers import mark_header, response_headers
from databus.relay.serving.reading.multi_source_stream import MultiSourceJob, MultiSourceResponse
from databus.relay.serving.reading.reading import Reading, start_job
from databus.relay.serving.reading.request_tracker import RequestTracker
from databus.relay.serving.reading.stream import StreamJob, StreamResponse
from databus.schemas.errors import (
    DatabusError,
    InvalidParameterError,
    UnknownCommandError,
)
from databus.schemas.event.metadata import with_metadata_schemas
from databus.schemas.parameters import parse_protocol_version
from databus.schemas.protocol import Header, Parameter

LEAST_COMPRESSED_BYTES = 512  # of an answer that does not go on
# How long a response goes on with windows without rows: only the next one proves the log there.
PROVED_AFTER_S = 0.25
PARTITION = "0"
CONTROLS = ("pause", "unpause", "start", "shutdown")  # admin actions on capture
SERVICES = ("saveMetaState", "runGC")  # admin actions on the relay

Response = StreamResponse | MultiSourceResponse
Job = StreamJob | MultiSourceJob
Answer = TypeVar("Answer")


class SourcesHandler(RelayHandler):
    """`/sources`: names and ids."""

    is_by_source = True

    async def answer(self, *_path: str) -> None:
        """Answer with every source of the relay that the requester may read."""
        ids = self.relay.catalog.ids
        names = readable(self.read_limit(), ids)
        await self.send_json([{"name": name, "id": ids[name]} for name in names])


class RegisterHandler(RelayHandler):
    """`/register`: all schema versions of the requested sources.

    The relay keeps nothing of it but, as long as the connection lasts, which versions were sent.
    """

    is_by_source = True

    async def answer(self, *_path: str) -> None:
        """Answer in the format of the requested protocol version."""
        parameters = self.parameters()
        version = parse_protocol_version(parameters)
        src_ids = self._src_ids(parameters)
        schemas = self._schemas(src_ids)
        self.note_versions(src_ids, schemas)
        self.set_header(Header.PROTOCOL_VERSION, str(version))
        await self.send_json(schemas if version < 4 else with_metadata_schemas(schemas))

    def _src_ids(self, parameters: Mapping[str, str]) -> list[int]:
        """Return the ids that are named, or all that may be read."""
        limit, catalog = self.read_limit(), self.relay.catalog
        if not parameters.get(Parameter.SOURCES, "").strip():
            return [catalog.ids[name] for name in readable(limit, catalog.ids)]
        src_ids = parse_source_list(parameters, catalog)
        check_ids(limit, src_ids, catalog)
        return src_ids

    def _schemas(self, src_ids: Sequence[int]) -> list[dict[str, Any]]:
        catalog, registry = self.relay.catalog, self.relay.registry
        return [
            {"id": src_id, "version": version.version, "schema": version.text}
            for src_id in src_ids
            for version in registry.versions(catalog.name_of(src_id))
        ]


class StreamHandler(RelayHandler):
    """`/stream`: events from a position on; the request is held while there are none."""

    at_once = staticmethod(answer_at_once)
    is_by_source = True

    def initialize(  # type: ignore[override]
        self, limits: HttpSettings, relay: Relay, requests: StreamRequests
    ) -> None:
        """Take the relay to serve."""
        super().initialize(limits, relay, requests)
        self._is_disconnected = False
        self._reading = Reading(relay)

    def on_connection_close(self) -> None:
        """End a held request whose client has disconnected."""
        super().on_connection_close()
        self._is_disconnected = True
        self._reading.disconnect()

    async def answer(self, *_path: str) -> None:
        """Answer with events and the position to continue from."""
        with RequestTracker(self.relay, caller_of_request(self.request)) as self._tracker:
            parameters = self.event_parameters()
            asked = self.requests.parse(parameters)
            request = limited_request(asked, self.read_limit(), self.relay.catalog)
            end = time.monotonic() + request.wait_ms / 1000
            self._tracker.asks(parameters.get(Parameter.FILTERS, ""))
            response, is_last = await self._respond_with_known(request)
            if self._is_disconnected:
                return
            for name, value in mark_header(response, request, self.relay).items():
                self.set_header(name, value)
            # A new connection makes LinkedIn's client register again, which sends it the schemas.
            if is_last:
                self.set_header("Connection", "close")
            elif isinstance(response, StreamResponse) and self._may_go_on(request, response):
                await self._follow(request, response, end)
                return
            body = response.body
            if len(body) >= LEAST_COMPRESSED_BYTES and self._is_compressed(request):
                body = await self._in_thread(encode_body, body)
                self.set_header("Content-Encoding", "zstd")
            for name, value in response_headers(response).items():
                self.set_header(name, value)
            # Before the send, which may fail: what was read may have reached the client.
            stored = response.stored if isinstance(response, StreamResponse) else None
            if stored is not None:
                self._tracker.serves(stored.plain_bytes)
                await self.send_file(stored.file, request.form.content_type)
            else:
                self._tracker.serves(len(response.body))
                await self.send(body, request.form.content_type)
            if is_last:
                await self.close_connection()

    async def _respond_with_known(self, request: StreamRequest) -> tuple[Response, bool]:
        """Return the response, and whether it ends where the client's schemas do."""
        if not self.versions_sent:
            return await self._respond(request), False
        while True:
            ends = find_ends(request, self.versions_sent, self.relay)
            response = respond_past(request, ends, self.relay)
            if response is not None:
                return response, True
            response = await self._respond(end_at(request, ends))
            # Otherwise a table was altered meanwhile, and the response may have rows of the new
            # version, whose schema the client does not have.
            if find_ends(request, self.versions_sent, self.relay) == ends:
                return response, reaches_end(response, ends)

    async def _respond(self, request: StreamRequest) -> Response:
        takes_stored = accepts_zstd(self.request.headers.get("Accept-Encoding", ""))
        return await self._reading.read(
            partial(make_jobs, request, self.relay, takes_stored=takes_stored),
            lambda jobs: self.in_time(self._read(jobs, request)),
            request.wait_ms / 1000,
        )

    def _may_go_on(self, request: StreamRequest, response: StreamResponse) -> bool:
        """Return whether the response may be followed by the windows to come."""
        is_packed = accepts_gzip(self.request.headers.get("Accept-Encoding", ""))
        has_frames = self.request.version == "HTTP/1.1" and not is_packed
        may_follow = request.may_follow and not self.versions_sent
        may_follow = may_follow and not self._reading.is_in_catch_up
        may_follow = may_follow and not response.is_followed_by_stored
        return may_follow and has_frames and response.has_whole_windows

    async def _follow(self, request: StreamRequest, first: StreamResponse, end: float) -> None:
        """Send windows as they come, until `wait` is over or `size` is reached.

        What is no whole window, and every error, is left to the client's next request; so is what
        proves the log to it, soon, when the windows have no rows of the selection.
        """
        (job,) = make_jobs(request, self.relay, from_ring=True)
        source = self.relay.physical_source(job.selection.physical_source)
        tail, size_bytes, response = lambda: source.reader.tail, request.form.size_bytes, first
        encoder = BodyEncoder() if self._is_compressed(request) else None
        encode = None if encoder is None else encoder.encode
        send_at_once = partial(self.send_part_at_once, encode=encode)
        until = end, time.monotonic() + PROVED_AFTER_S
        follower = Follower(job, tail, self._tracker, size_bytes, send_at_once, until)
        if encoder is not None:
            self.set_header("Content-Encoding", "zstd")

        def listen() -> asyncio.Future[None]:
            # While the task does something else, the windows are left to it.
            return source.notifier.add(
                src_ids=job.selection.src_ids,
                at_once=lambda: self._reading.is_held and follower.send_at_once(),
            )

        news, listed = listen(), self._reading.listed([job])
        try:
            while True:
                if body := response.body:
                    follower.serves(response)
                    if encode is not None:
                        body = await self._in_thread(encode, body)
                    await self.send_part(body, request.form.content_type)
                    follower.goes_on(response)
                if follower.is_at_end:
                    await self._reading.hold(news, follower.left_s)
                if self._is_disconnected or self.relay.is_closing or follower.left_s <= 0:
                    break
                if self._reading.listed([job]) != listed:
                    break  # it is for the sources of then
                if news.done():  # again before reading, so that no window is missed
                    news = listen()
                following = await self._read_on(job, follower.left_bytes)
                if following is None:
                    break
                response = following
        finally:
            source.notifier.remove(news)
        if encoder is not None:
            await self.send_part(encoder.end(), request.form.content_type)
        await self.end_parts()

    def _is_compressed(self, request: StreamRequest) -> bool:
        encodings = self.request.headers.get("Accept-Encoding", "")
        return request.is_compressed and accepts_zstd(encodings) and not accepts_gzip(encodings)

    async def _in_thread(self, encode: Callable[[bytes], bytes], body: bytes) -> bytes:
        """Return what a function makes of a body; beside the loop, if that takes time."""
        if len(body) <= FIRST_BYTES:
            return encode(body)
        loop = asyncio.get_running_loop()
        return await self.in_time(loop.run_in_executor(None, encode, body))

    async def _read_on(self, job: StreamJob, size_bytes: int) -> StreamResponse | None:
        """Return the next windows, or none yet; None if something else is to be answered."""
        await self.fair_queue.take()
        try:
            job.start(size_bytes)
            response = await self.in_steps(job.step)
        except DatabusError:
            return None
        return response if response.is_caught_up or response.has_whole_windows else None

    async def _read(self, jobs: Sequence[StreamJob], request: StreamRequest) -> Response:
        """Read the rings, queueing with other requests."""
        job: Job = jobs[0]
        if request.is_together:
            job = MultiSourceJob(jobs, request.form.size_bytes)
        await start_job(self.fair_queue, self._tracker, jobs, job.start)
        return await self.in_steps(job.step)


class PhysicalSourcesHandler(RelayHandler):
    """`/physicalSources`: the physical sources and their sources."""

    is_by_source = True

    async def answer(self, *_path: str) -> None:
        """Answer with every physical source of which the requester may read something."""
        found = []
        for source in self.relay.settings.physical_sources:
            ids = self.relay.catalog.src_ids_of(source.name)
            names = readable(self.read_limit(), ids)
            if names or self.read_limit() is None:
                sources = [{"name": name, "id": ids[name]} for name in names]
                place = {"uri": source.uri, "partition": int(PARTITION)}
                found.append({"name": source.name, **place, "sources": sources})
        await self.send_json(found)


class BufferInfoHandler(RelayHandler):
    """`/bufferInfo/inbound/<physical source>/<partition>`: the content of its ring."""

    async def answer(self, *path: str) -> None:
        """Answer with SCNs and timestamps; these are in milliseconds, as in Databus."""
        name, partition = path
        if partition != PARTITION:
            raise InvalidParameterError("partition", partition, f"{PARTITION} is the only one")
        reader = self.relay.physical_source(name).reader
        await self.send_json(
            {
                "minScn": reader.min_scn,
                "maxScn": reader.max_scn,
                "timestampFirstEvent": reader.first_timestamp_ns // 1_000_000,
                "timestampLatestEvent": reader.latest_timestamp_ns // 1_000_000,
            }
        )


class StatsHandler(RelayHandler):
    """`/containerStats/…` and `/relayStats/…`: counters; the path selects a part of them."""

    async def answer(self, *path: str) -> None:
        """Answer with the part that the path selects, or with all counters."""
        value: Any = self._counts()
        for step in filter(None, path[0].split("/")):
            if not isinstance(value, dict) or step not in value:
                raise UnknownCommandError(self.request.path)
            value = value[step]
        await self.send_json(value)

    def _counts(self) -> dict[str, Any]:
        by_source = {
            status.name: {
                "events": status.capture.events,
                "windows": status.capture.windows,
                "bytes": status.capture.size_bytes,
                "scn": status.capture.scn,
                "timestampNs": status.capture.timestamp_ns,
            }
            for status in self.relay.statuses()
        }
        total = {
            key: sum(counts[key] for counts in by_source.values())
            for key in ("events", "windows", "bytes")
        }
        traffic = self.relay.traffic
        outbound = {
            "streamRequests": traffic.stream_requests,
            "bytes": traffic.stream_bytes,
            "scnNotFound": traffic.scn_not_found,
        }
        return {
            "inbound": {"events": {"total": total, "psources": by_source}},
            "outbound": {"http": {"total": outbound, "clients": self._clients()}},
            "uptimeSeconds": round(time.time() - traffic.started_at_s, 3),
        }

    def _clients(self) -> dict[str, dict[str, int]]:
        return {
            client.caller.id: {"streamRequests": client.requests, "bytes": client.served_bytes}
            for client in self.relay.monitor.clients
        }


class ControlSourcesHandler(RelayHandler):
    """`/controlSources/<verb>`: status or control of all captures, or of `source=<name>`."""

    def role_needed(self) -> Role:
        """Return ADMIN for the verbs that change something."""
        return Role.ADMIN if self.path_args[0] in CONTROLS else Role.READER

    async def answer(self, *path: str) -> None:
        """Carry out the verb and answer with the status after it."""
        if path[0] not in ("status", *CONTROLS):
            raise UnknownCommandError(self.request.path)
        relay, name = self.relay, self.parameters().get(Parameter.SOURCE, "")
        every = relay.physical_sources.values()
        chosen = [relay.physical_source(name)] if name else list(every)
        if path[0] != "status":
            act = self._act(path[0])
            loop = asyncio.get_running_loop()
            # On threads: control actions block for up to some seconds.
            await asyncio.gather(*(loop.run_in_executor(None, act, one) for one in chosen))
        status = self.relay.status()
        await self.send_json({name: status[name]} if name else status)

    def _act(self, verb: str) -> Callable[[PhysicalSource], None]:
        control = self.relay.control
        acts = {"shutdown": control.stop, "pause": control.pause}
        return acts.get(verb, control.resume)


class RelayCommandHandler(RelayHandler):
    """`/relayCommand/<verb>`: `saveMetaState`, `getPrevScn`, `runGC`."""

    def role_needed(self) -> Role:
        """Return ADMIN for the verbs that change something."""
        return Role.ADMIN if self.path_args[0] in SERVICES else Role.READER

    async def answer(self, *path: str) -> None:
        """Carry out the verb and answer with its result."""
        if path[0] not in ("getPrevScn", *SERVICES):
            raise UnknownCommandError(self.request.path)
        sources = self.relay.physical_sources.values()
        if path[0] == "getPrevScn":
            await self.send_json({source.name: source.reader.prev_scn for source in sources})
            return
        if path[0] == "saveMetaState":
            for source in sources:
                source.capture.save_soon()
        elif path[0] == "runGC":
            gc.collect()
        await self.send_json({"command": path[0], "result": "done"})


class AdminHandler(RelayHandler):
    """`/admin`: the health check of load balancers for Databus relays."""

    def role_needed(self) -> Role:
        """Return NOBODY: a load balancer has no token, and the answer has no data."""
        return Role.NOBODY

    async def answer(self, *_path: str) -> None:
        """Answer GOOD."""
        await self.send(b"GOOD", "text/plain; charset=UTF-8")


# The most frequent one first: tornado compares a path with one after the other.
COMMANDS: tuple[tuple[str, type[RelayHandler]], ...] = (
    ("/stream", StreamHandler),
    ("/sources", SourcesHandler),
    ("/register", RegisterHandler),
    ("/measure", MeasureHandler),
    ("/segments", SegmentsHandler),
    ("/physicalSources", PhysicalSourcesHandler),
    ("/bufferInfo/inbound/([^/]+)/([^/]+)", BufferInfoHandler),
    ("/containerStats(?:/(.*))?", StatsHandler),
    ("/relayStats(?:/(.*))?", StatsHandler),
    ("/controlSources/([A-Za-z]+)", ControlSourcesHandler),
    ("/relayCommand/([A-Za-z]+)", RelayCommandHandler),
    ("/admin", AdminHandler),
)
