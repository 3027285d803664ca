"""The blocking HTTP client: requests to one server, over one persistent connection.

Commands, Spark's planner and its tasks use it; the client library has an asynchronous transport
(`client/puller/transport.py`). The client uses no proxy and follows no redirect, so a token is
sent to the named server only.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    IncompleteRead,
)
from io import BufferedReader
from types import MappingProxyType
from typing import Protocol, TypeVar
from urllib.parse import urlencode, urlsplit

from databus import __version__
from databus.daemon.http.chunked_body import ChunkedBody, MalformedResponseError
from databus.daemon.http.decoding import ZSTD, BodyDecoder, decode_body, is_zstd
from databus.schemas.errors import UnauthorizedError

# What `HttpClient.get` raises when there is no whole response.
FAILURES = (OSError, HTTPException, ValueError)
EXCERPT_CHARS = 200  # of a stranger's text
_ROOM = bytes(1 << 20)  # added to a body whose size is not known yet
_READ_BYTES = 64 << 10  # of a body that is read as it comes
_LAST_CHUNK = b"0\r\n\r\n"
_MAX_TRAILERS_BYTES = 64 << 10
Answer = TypeVar("Answer")
_LAST_LINES = (b"\r\n", b"\n")  # of headers and of trailers


def printable(error: Exception) -> str:
    """Return the text of a failure, which may have bytes of what is no HTTP server, to be shown."""
    return str(error).encode("unicode_escape").decode()


def excerpt(body: bytes) -> str:
    """Return the beginning of a stranger's text, as one line to be shown."""
    text = body[: 4 * EXCERPT_CHARS].decode("utf-8", "replace").strip()
    escaped = (one if one.isprintable() else ascii(one)[1:-1] for one in text)
    return "".join(escaped)[:EXCERPT_CHARS]


class Credentials(Protocol):
    """A client's token, and its trust in servers; called for each connection."""

    def headers(self) -> Mapping[str, str]:
        """Return the headers that authenticate the client."""
        ...

    def tls(self) -> ssl.SSLContext:
        """Return the TLS context for a server at `https://`."""
        ...


@dataclass(frozen=True, slots=True)
class Response:
    """A whole response, whatever its status. Header names are lower case.

    A trailer replaces the header that was sent before its value was known.
    """

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytearray


class HttpClient:
    """A client of one server. Use it from one thread at a time."""

    def __init__(
        self,
        url: str,
        credentials: Credentials | None = None,
        *,
        connect_timeout_s: float,
        response_timeout_s: float,
        max_bytes: int,
        headers: Mapping[str, str] = MappingProxyType({}),
        takes_zstd: bool = False,
    ) -> None:
        """Send `headers` with each request; refuse responses of more than `max_bytes`.

        With `takes_zstd` the server may send bodies compressed: not in the next request after a
        failure, so that it can say what is wrong with them.
        """
        self._url = url
        self._credentials = credentials
        self._connect_timeout_s = connect_timeout_s
        self._response_timeout_s = response_timeout_s
        self._max_bytes = max_bytes
        self._headers = {"User-Agent": f"databus/{__version__}", **headers}
        self._takes_zstd, self._is_plain = takes_zstd, not takes_zstd
        self._shown: Mapping[str, str] = {}  # the credentials of this connection
        self._connection: HTTPConnection | None = None

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def get(self, path: str, parameters: Mapping[str, str] = MappingProxyType({})) -> Response:
        """Return the response to GET; `path` is appended to the path of the URL.

        Raises one of FAILURES without a whole response, and the errors of the credentials. If the
        server has closed the persistent connection meanwhile, the request is repeated once.
        """
        return self._get(path, parameters, lambda opened: opened.read())

    def open(self, path: str, parameters: Mapping[str, str] = MappingProxyType({})) -> OpenResponse:
        """Return the response to GET as soon as its headers have come: the rest is to be read.

        Errors and repetition are those of `get`. No other request may be made before its end.
        """
        return self._get(path, parameters, lambda opened: opened)

    def _get(
        self,
        path: str,
        parameters: Mapping[str, str],
        read: Callable[[OpenResponse], Answer],
    ) -> Answer:
        target = urlsplit(self._url).path.rstrip("/") + path
        if parameters:
            target = f"{target}?{urlencode(parameters)}"
        was_kept = self._connection is not None
        while True:
            try:
                opened = self._open("GET", target)
                answer = read(opened)
            except FAILURES as error:
                self.close()
                self._is_plain = True
                if not was_kept or not isinstance(error, ConnectionError | HTTPException):
                    raise
                was_kept = False
                continue
            if opened.status == UnauthorizedError.status:
                self.close()  # the next connection reads the token again
            self._is_plain = not self._takes_zstd
            return answer

    def post(
        self, path: str, body: bytes, headers: Mapping[str, str] = MappingProxyType({})
    ) -> Response:
        """Return the response to POST with a JSON body, which is sent once; with more headers.

        Raises one of FAILURES without a whole response, and the errors of the credentials.
        """
        try:
            target = urlsplit(self._url).path.rstrip("/") + path
            return self._open("POST", target, body, headers).read()
        except FAILURES:
            self.close()
            raise

    def _open(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> OpenResponse:
        connection = self._connection = self._connection or self._connect()
        sent = {**self._headers, **headers, **self._shown}
        if not self._is_plain:
            sent["Accept-Encoding"] = ZSTD
        if body is not None:
            sent["Content-Type"] = "application/json"
        connection.request(method, target, body, sent)
        return OpenResponse(self, connection.getresponse(), self._max_bytes)

    def _connect(self) -> HTTPConnection:
        url = urlsplit(self._url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError("is not a URL like http://host:port")
        self._shown = {} if self._credentials is None else self._credentials.headers()
        timeout_s = self._connect_timeout_s
        if url.scheme == "https":
            tls = None if self._credentials is None else self._credentials.tls()
            connection: HTTPConnection = HTTPSConnection(
                url.hostname, url.port, timeout=timeout_s, context=tls
            )
        else:
            connection = HTTPConnection(url.hostname, url.port, timeout=timeout_s)
        connection.response_class = _StrictResponse
        connection.connect()
        connection.sock.settimeout(self._response_timeout_s)
        return connection


class OpenResponse:
    """A response whose headers have come: see `HttpClient.open`. Header names are lower case."""

    def __init__(self, client: HttpClient, response: HTTPResponse, max_bytes: int) -> None:
        self._client, self._response, self._max_bytes = client, response, max_bytes
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self._chunks = ChunkedBody()
        self._end = b""  # what has come behind the last part
        self._part = bytearray()
        self._decoder = BodyDecoder(self._part.extend, max_bytes) if is_zstd(self.headers) else None
        self._read_bytes = 0

    @property
    def is_chunked(self) -> bool:
        """Whether the body comes in chunks."""
        return bool(self._response.chunked)

    def read(self) -> Response:
        """Return it whole; raises one of FAILURES."""
        response, headers = self._response, self.headers
        answer = _read_body(response, self._max_bytes)
        if self._decoder is not None:
            answer = decode_body(answer, self._max_bytes)
        if isinstance(response, _StrictResponse):
            headers |= response.trailers
        if response.will_close:
            # Otherwise http.client reconnects by itself, with the wrong time-out.
            self._client.close()
        return Response(response.status, response.reason, headers, answer)

    def next_part(self) -> bytearray:
        """Return the whole chunks that have come, waiting for one; none at the end of the body.

        Raises one of FAILURES, and closes the connection then.
        """
        try:
            while self._response.fp is not None and not (self._part and self._chunks.is_between):
                self._receive()
        except (*FAILURES, MalformedResponseError) as error:
            self._client.close()
            if isinstance(error, MalformedResponseError):
                raise HTTPException(str(error)) from error
            raise
        found = bytearray(self._part)
        self._part.clear()
        return found

    def _receive(self) -> None:
        data = self._response.fp.read1(_READ_BYTES)
        self._read_bytes += len(data)
        if not data or self._read_bytes > self._max_bytes:
            raise IncompleteRead(b"")
        if not self._end:
            part, self._end = self._chunks.receive(data)
            if self._decoder is None:
                self._part += part
            else:
                self._decoder.receive(part)
        else:
            self._end += data
        if self._end == _LAST_CHUNK:
            self._response.close()
            if self._response.will_close:
                self._client.close()
        elif not _LAST_CHUNK.startswith(self._end):
            raise MalformedResponseError("something else than the next chunk of a body")


class _Lines:
    """Reads lines of a response, and keeps the last one."""

    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        self.last = b""

    def readline(self, size: int = -1) -> bytes:
        """Return the next line."""
        self.last = self._file.readline(size)
        return self.last

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _StrictResponse(HTTPResponse):
    """A response whose headers are whole, and whose trailers are kept.

    `http.client` takes the end of the connection for the end of the headers: an answer that was
    cut there would be an empty one. It drops trailers, in which LinkedIn's servers name the error
    if they fail in the middle of a body.
    """

    trailers: Mapping[str, str] = MappingProxyType({})

    def begin(self) -> None:
        """Read the status line and the headers."""
        file, lines = self.fp, _Lines(self.fp)
        self.fp = lines  # type: ignore[assignment]
        try:
            super().begin()
        finally:
            if self.fp is not None:  # it is closed after an error
                self.fp = file
        if lines.last not in _LAST_LINES:
            raise IncompleteRead(lines.last)

    def _read_and_discard_trailer(self) -> None:
        """Read the trailers; `http.client` calls this after the last chunk."""
        found: dict[str, str] = {}
        size_bytes = 0
        while (line := self.fp.readline(_MAX_TRAILERS_BYTES)) not in _LAST_LINES:
            size_bytes += len(line)
            if not line.endswith(b"\n"):
                raise IncompleteRead(b"")
            if size_bytes > _MAX_TRAILERS_BYTES:
                raise HTTPException(f"trailers of more than {_MAX_TRAILERS_BYTES} bytes")
            name, _, value = line.decode("latin-1").partition(":")
            found[name.strip().lower()] = value.strip()
        self.trailers = found


def _read_body(response: HTTPResponse, max_bytes: int) -> bytearray:
    """Return the body; raise ValueError beyond the limit, HTTPException when it is cut."""
    length = response.length
    if length is not None and length > max_bytes:
        raise ValueError(f"a response of {length} bytes; at most {max_bytes} are read")
    if length is None:  # chunked, or until the connection closes
        return _read_to_the_end(response, max_bytes)
    # Without intermediate copies: a body may have hundreds of MiB.
    body = bytearray(length)
    view = memoryview(body)
    while view and (count := response.readinto(view)):
        view = view[count:]
    if view:
        raise ConnectionError(f"the response ends {len(view)} bytes before its end")
    response.read()  # lets the connection be used again
    return body


def _read_to_the_end(response: HTTPResponse, max_bytes: int) -> bytearray:
    # Into its place, as one of known size: joining its chunks would copy it once more.
    body, size = bytearray(), 0
    while True:
        if size == len(body):
            body += _ROOM
        with memoryview(body) as view, view[size:] as room:
            count = response.readinto(room)
        size += count
        if size > max_bytes:
            raise ValueError(f"a response of more than {max_bytes} bytes")
        if not count:
            del body[size:]
            return body
