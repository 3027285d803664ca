"""The requests of the connection machine: sends them and reads the answers.

Errors are raised; `puller` turns them into messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from databus.client.machines.connection_messages import (
    ConnectionStateMessage,
    GetPage,
    GetPosition,
    GetSchemas,
    GetSources,
    GetStartScn,
    GetStream,
    GetTargetScn,
    PageAnswered,
    PositionAnswered,
    SchemasAnswered,
    SchemaUnknown,
    SourcesAnswered,
    StartScnAnswered,
    StreamAnswered,
    TargetScnAnswered,
    WindowTooLarge,
)
from databus.client.puller.buffer_items import BufferItem
from databus.client.puller.page_decoder import PageDecoder
from databus.client.puller.transport import Answer, OnChunk, make_transport
from databus.client.puller.unknown_schemas import UnknownSchemaError
from databus.client.puller.window_decoder import WindowDecoder
from databus.client.responses import (
    read_mark,
    read_page_headers,
    read_position,
    read_schemas,
    read_scn,
    read_sources,
    read_stream_headers,
)
from databus.conf.settings import ClientSettings
from databus.schemas.error_headers import read_error
from databus.schemas.errors import (
    PlaceNotFoundError,
    ProtocolError,
    ServerError,
    SettingsError,
    UnknownCommandError,
    WindowTooLargeError,
)
from databus.schemas.protocol import Header, Parameter

MAX_SMALL_ANSWER_BYTES = 64 << 20  # of /sources and /register
REGISTER_VERSION = "3"

Request = GetSources | GetSchemas | GetPosition | GetStream | GetStartScn | GetTargetScn | GetPage


class ServerRequests:
    """Makes one registration's requests, one at a time. Loop thread only."""

    def __init__(
        self,
        settings: ClientSettings,
        window_decoder: WindowDecoder,
        page_decoder: PageDecoder,
        on_items: Callable[[list[BufferItem]], None],
        client_id: str = "",
    ) -> None:
        """Pass decoded stream items to `on_items`; a page stays in `page_decoder`."""
        self._settings = settings
        self._window_decoder = window_decoder
        self._page_decoder = page_decoder
        self._on_items = on_items
        self._transport = make_transport(settings, client_id)
        # A relay sends history as it lies on disk. If that was no good, it is asked for the events
        # themselves, and names those that are damaged.
        self._takes_zstd = True

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    async def make(self, request: Request) -> ConnectionStateMessage:
        """Make a request and return the answer's message; raise DatabusError."""
        server = request.server
        match request:
            case GetSources():
                answer = await self._get(server, "/sources", {Parameter.VERSION: "1"})
                return SourcesAnswered(read_sources(server, answer.body))
            case GetSchemas(_, src_ids):
                parameters = {
                    Parameter.SOURCES: _listed(src_ids),
                    Parameter.PROTOCOL_VERSION: REGISTER_VERSION,
                }
                answer = await self._get(server, "/register", parameters)
                return SchemasAnswered(read_schemas(server, answer.body))
            case GetPosition():
                return await self._get_position(request)
            case GetStartScn():
                return await self._get_start_scn(request)
            case GetTargetScn(_, source):
                answer = await self._get(server, "/targetSCN", {Parameter.SOURCE: source})
                scn = read_scn(server, "/targetSCN", answer.body)
                return TargetScnAnswered(scn, read_mark(server, answer.headers))
        return await self._get_events(request)

    async def _get(self, server: str, path: str, parameters: Mapping[str, str]) -> Answer:
        return await self._ask(
            server, path, parameters, self._settings.request_timeout_s, MAX_SMALL_ANSWER_BYTES
        )

    async def _ask(
        self,
        server: str,
        path: str,
        parameters: Mapping[str, str],
        timeout_s: float,
        max_bytes: int,
        on_chunk: OnChunk | None = None,
        scn: int = -1,
        *,
        takes_zstd: bool = False,
    ) -> Answer:
        answer = await self._transport.get(
            server,
            path,
            parameters,
            timeout_s=timeout_s,
            max_bytes=max_bytes,
            on_chunk=on_chunk,
            takes_zstd=takes_zstd,
        )
        error = read_error(server, scn, answer.status, answer.headers)
        # Raised also for status 200: Databus puts some errors into headers only.
        if error is not None:
            raise error
        return answer

    async def _get_position(self, request: GetPosition) -> PositionAnswered:
        first, *others = request.src_ids
        path = f"/api/v1/sources/{first}/position"
        parameters = {"at": str(request.place), "others": _listed(tuple(others))}
        try:
            answer = await self._get(request.server, path, parameters)
        except UnknownCommandError as error:
            raise PlaceNotFoundError(
                f"{request.server} is a relay of another project or version, which cannot find "
                f"{request.place}; start at an SCN, earliest or latest"
            ) from error
        return PositionAnswered(read_position(request.server, answer.body))

    async def _get_start_scn(self, request: GetStartScn) -> StartScnAnswered:
        parameters = {
            Parameter.SOURCES: ",".join(request.sources),
            Parameter.CHECKPOINT: request.checkpoint.to_json(),
        }
        answer = await self._get(request.server, "/startSCN", parameters)
        scn = read_scn(request.server, "/startSCN", answer.body)
        return StartScnAnswered(scn, answer.headers.get(Header.STORE_ID, ""))

    async def _get_events(self, request: GetStream | GetPage) -> ConnectionStateMessage:
        path = "/stream" if isinstance(request, GetStream) else "/bootstrap"
        try:
            if isinstance(request, GetStream):
                return await self._get_stream(request)
            return await self._get_page(request)
        # Not yet an error of the server: a table may have been altered after the registration.
        except UnknownSchemaError as unknown:
            progress = self._window_decoder.progress
            return SchemaUnknown(unknown.schema_id, progress, unknown.src_id, unknown.scn)
        except WindowTooLargeError as large:
            settings_error = SettingsError(f"{large}; raise max_window_bytes")
            return WindowTooLarge(settings_error, self._window_decoder.progress)
        except ProtocolError as bad:
            raise ServerError(
                request.server, f"bad bytes in {path}: {self._explain(request, bad)}"
            ) from bad

    def _explain(self, request: GetStream | GetPage, bad: ProtocolError) -> str:
        """Return what is wrong, and after which window: the same text at each try.

        The offset that `bad` names is in a chunk, and chunks differ.
        """
        position = self._window_decoder.progress.position
        if isinstance(request, GetPage) or position is None or position.scn < 0:
            return bad.problem
        return f"{bad.problem} (after scn {position.scn})"

    async def _get_stream(self, request: GetStream) -> StreamAnswered:
        server, started_s = request.server, asyncio.get_running_loop().time()
        self._window_decoder.begin(request.position)
        takes_zstd, self._takes_zstd = self._takes_zstd, False
        answer = await self._ask(
            server,
            "/stream",
            self._stream_parameters(request),
            # The relay may hold the request for `wait` before it answers.
            self._settings.request_timeout_s + self._settings.wait_ms / 1000,
            _most_bytes(request.size_bytes),
            self._take_chunk,
            request.checkpoint.window_scn,
            takes_zstd=takes_zstd,
        )
        self._window_decoder.end()
        self._takes_zstd = True
        elapsed_s = asyncio.get_running_loop().time() - started_s
        headers = read_stream_headers(server, answer.headers)
        return StreamAnswered(answer.body_bytes, elapsed_s, headers, self._window_decoder.progress)

    async def _get_page(self, request: GetPage) -> PageAnswered:
        self._page_decoder.begin(request.src_ids, request.checkpoint)
        parameters = {
            Parameter.SOURCES: _listed(request.src_ids),
            Parameter.CHECKPOINT: request.checkpoint.to_json(),
            Parameter.OUTPUT: "binary",
            Parameter.BATCH_SIZE: str(request.size_bytes),
            Parameter.EVENT_VERSION: "2",
            Parameter.TRUNCATE: "true",
        }
        if request.filters is not None:
            parameters[Parameter.FILTER] = request.filters
        answer = await self._ask(
            request.server,
            "/bootstrap",
            parameters,
            self._settings.request_timeout_s,
            _most_bytes(request.size_bytes),
            self._page_decoder.receive,
        )
        page = self._page_decoder.end()
        return PageAnswered(page, read_page_headers(request.server, answer.headers))

    def _take_chunk(self, chunk: bytes) -> None:
        self._on_items(self._window_decoder.receive(chunk))
        self._window_decoder.check()  # only now: the windows before something bad are good

    def _stream_parameters(self, request: GetStream) -> dict[str, str]:
        parameters = {
            Parameter.SOURCES: _listed(request.src_ids),
            Parameter.CHECKPOINT: request.checkpoint.to_json(),
            Parameter.SIZE: str(request.size_bytes),
            Parameter.OUTPUT: "binary",
            Parameter.EVENT_VERSION: "2",
            Parameter.TRUNCATE: "true",
            # Always requested: DDL events are few, unwanted ones are dropped here, and a
            # relay that need not filter them out copies whole windows.
            Parameter.DDL: "true",
            Parameter.WAIT_MS: str(self._settings.wait_ms) if request.may_be_held else "0",
        }
        if request.may_be_held:
            parameters[Parameter.FOLLOW] = "true"  # one request for many transactions
        if request.filters is not None:
            parameters[Parameter.FILTERS] = request.filters
        if request.is_from_latest:
            parameters[Parameter.FROM_LATEST] = "true"
        return parameters


def _listed(src_ids: tuple[int, ...]) -> str:
    return ",".join(map(str, src_ids))


def _most_bytes(size_bytes: int) -> int:
    """Return the largest acceptable answer to a request for `size_bytes`."""
    return 2 * size_bytes + (64 << 10)
