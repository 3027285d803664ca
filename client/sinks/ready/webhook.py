"""The sink `webhook`: POSTs batches of changes as JSON, signed.

    Databus-Signature: t=1764370000,v1=5257a869…
    Idempotency-Key: 8589936646:0..8589936650:3

`v1` is the HMAC-SHA256, with the secret, of the time `t`, a dot and the body. A batch that is sent
again has its key again, and every change in it its `id`, SCN:index. At least once: whoever receives
ignores an `id` that it has.
"""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from databus.client.sinks.contract import Change, Opening, Position
from databus.client.sinks.errors import SinkRefusedError, SinkUnavailableError
from databus.client.sinks.formats.plain import plain_json
from databus.conf.addresses import without_password
from databus.conf.model import Settings
from databus.conf.server_settings import ServerAccessSettings, check_server_urls
from databus.daemon.credentials import ServerAccess
from databus.daemon.http.client import FAILURES, HttpClient, Response, excerpt, printable
from databus.daemon.tokens import private_line

SIGNATURE, IDEMPOTENCY_KEY = "Databus-Signature", "Idempotency-Key"
_MAX_ANSWER_BYTES = 1 << 20
_BUSY = frozenset({408, 425, 429})  # and every 5xx: the same again may help
_LONGEST_WAIT_S = 3600.0  # that a receiver may ask for
# One request is sent again so often before all of the flush is: those before it were taken.
_WAITS_S = (0.1, 0.3, 1.0, 3.0)


class WebhookSink:
    """Sends batches one after the other; at least once."""

    class Options(Settings):
        """Options of `webhook`."""

        url: str = Field(description="Where changes are POSTed")
        secret_file: Path | None = Field(
            default=None, description="File with the secret of signatures; none = not signed"
        )
        batch: int = Field(default=100, ge=1, description="Most changes of one request")
        access: ServerAccessSettings = Field(
            default_factory=ServerAccessSettings, description="Token and CA"
        )
        connect_timeout_s: float = Field(default=5.0, gt=0, description="Time to connect")
        answer_timeout_s: float = Field(default=30.0, gt=0, description="Time for an answer")

        @field_validator("url")
        @classmethod
        def _is_a_url(cls, url: str) -> str:
            return check_server_urls((url,))[0]

    def __init__(self, options: Options) -> None:
        """Raises SettingsError for a secret that cannot be read."""
        self.waiting = ""
        self._options = options
        self._secret = _secret(options.secret_file)
        parts = urlsplit(options.url)
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._client = HttpClient(
            f"{parts.scheme}://{parts.netloc}",
            ServerAccess(options.access),
            connect_timeout_s=options.connect_timeout_s,
            response_timeout_s=options.answer_timeout_s,
            max_bytes=_MAX_ANSWER_BYTES,
        )

    def open(self, opening: Opening) -> Position | None:  # noqa: ARG002
        """Do nothing: the receiver keeps no position."""
        return None

    def write(self, changes: Sequence[Change]) -> None:
        """Send the changes; raise SinkUnavailableError, SinkRefusedError."""
        for batch in batches(changes, self._options.batch):
            self._send(batch)

    def flush(self) -> Position | None:
        """Do nothing: what was answered is taken."""
        return None

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _send(self, batch: Sequence[Change]) -> None:
        """Send a batch, again and again while the receiver is busy for a moment."""
        answer = self._post(batch)
        try:
            for own_s in _WAITS_S:
                asked_s = retry_after_s(answer.headers, datetime.now(UTC)) or 0.0
                if not _is_busy(answer) or asked_s > _WAITS_S[-1]:
                    break
                wait_s = max(own_s, asked_s)
                self.waiting = f"{self._problem(answer)}; it is asked again after {wait_s:g} s"
                time.sleep(wait_s)
                answer = self._post(batch)
        finally:
            self.waiting = ""
        self._judge(answer, batch)

    def _post(self, batch: Sequence[Change]) -> Response:
        shown = [{"id": one.id, **plain_json(one)} for one in batch]
        body = json.dumps({"changes": shown}, ensure_ascii=False).encode()
        first, last = batch[0].id, batch[-1].id
        headers = {IDEMPOTENCY_KEY: first if len(batch) == 1 else f"{first}..{last}"}
        if self._secret:
            headers[SIGNATURE] = signature(self._secret, int(time.time()), body)
        try:
            return self._client.post(self._path, body, headers)
        except FAILURES as error:
            raise SinkUnavailableError(f"{self._shown}: {printable(error)}") from error

    def _judge(self, answer: Response, batch: Sequence[Change]) -> None:
        if 200 <= answer.status < 300:
            return
        problem = self._problem(answer)
        if _is_busy(answer):
            wait_s = retry_after_s(answer.headers, datetime.now(UTC))
            raise SinkUnavailableError(problem, wait_s)
        raise SinkRefusedError(problem, batch[0] if len(batch) == 1 else None)

    def _problem(self, answer: Response) -> str:
        said = excerpt(bytes(answer.body))
        status = f"{answer.status} {excerpt(answer.reason.encode())}"
        return f"{self._shown} answered {status}" + (f": {said}" if said else "")

    @property
    def _shown(self) -> str:
        return without_password(self._options.url.partition("?")[0])


def _is_busy(answer: Response) -> bool:
    return answer.status in _BUSY or answer.status >= 500


def batches(changes: Sequence[Change], size: int) -> list[tuple[Change, ...]]:
    """Return the changes in batches; the same changes are always cut alike."""
    return [tuple(changes[at : at + size]) for at in range(0, len(changes), size)]


def signature(secret: bytes, time_s: int, body: bytes) -> str:
    """Return the header that proves that a body comes from who has the secret."""
    signed = hmac.new(secret, f"{time_s}.".encode() + body, sha256).hexdigest()
    return f"t={time_s},v1={signed}"


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the wait that `Retry-After` asks for, in seconds or until a date; None without one."""
    text = headers.get("retry-after", "").strip()
    if text.isdecimal():
        return min(float(text), _LONGEST_WAIT_S)
    try:
        wait_s = (parsedate_to_datetime(text) - now).total_seconds()
    except (ValueError, TypeError):
        return None
    return min(max(wait_s, 0.0), _LONGEST_WAIT_S)


def _secret(file: Path | None) -> bytes:
    return b"" if file is None else private_line("secret_file", file).encode()
