"""The sink `elasticsearch`, and `opensearch`: each row is a document, by the bulk API.

At least once, and harmless: the version of a document is the SCN of its change, and what is older
than the document is not written.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from pydantic import Field, ValidationInfo, field_validator

from databus.client.sinks.contract import MARKS, Change, ChangeOp, Opening, Position
from databus.client.sinks.errors import SinkRefusedError, SinkUnavailableError
from databus.client.sinks.ready.basic_login import basic_login
from databus.client.sinks.ready.search.actions import Action, Actions, Place
from databus.client.sinks.ready.search.answers import body_of, check_items
from databus.client.sinks.ready.templates import Template
from databus.conf.model import Settings, SizeBytes
from databus.conf.server_settings import check_server_urls
from databus.daemon.http.client import FAILURES, HttpClient, Response, printable
from databus.daemon.tls import client_context
from databus.daemon.tokens import private_line
from databus.schemas.errors import SettingsError

_MAX_ANSWER_BYTES = 64 << 20


class SearchSink:
    """Puts and deletes documents with versions; at least once."""

    class Options(Settings):
        """Options of `elasticsearch` and `opensearch`."""

        url: str = Field(default="http://127.0.0.1:9200", description="The server, or a balancer")
        index: str = Field(default="{source}", description="Template of the index")
        id: str = Field(default="", description="Template of `_id`; none = the primary key")
        routing: str = Field(default="", description="Template of the routing; none = by `_id`")
        scn_field: str = Field(
            default="databus_scn",
            description="Field of each document with the SCN of its change; none = no such field, "
            "and a TRUNCATE is a refusal",
        )
        index_template: Path | None = Field(
            default=None, description="JSON file of an index template, put as databus-SINK"
        )
        bulk_bytes: SizeBytes = Field(default=5 << 20, ge=1024, description="About one request")
        user: str = Field(default="", description="User of the login by password")
        password_file: Path | None = Field(
            default=None, description="File with the password; only its user may read it"
        )
        api_key_file: Path | None = Field(
            default=None, description="File with an API key, encoded; only its user may read it"
        )
        tls_ca: Path | None = Field(
            default=None, description="CA certificates (PEM); none = those of the system"
        )
        connect_timeout_s: float = Field(default=5.0, gt=0, description="Time to connect")
        answer_timeout_s: float = Field(default=60.0, gt=0, description="Time for an answer")

        @field_validator("url")
        @classmethod
        def _is_a_url(cls, url: str) -> str:
            return check_server_urls((url,))[0]

        @field_validator("index", "id", "routing")
        @classmethod
        def _is_a_template(cls, text: str) -> str:
            Template(text)
            return text

        @field_validator("api_key_file")
        @classmethod
        def _one_login(cls, file: Path | None, info: ValidationInfo) -> Path | None:
            if file and info.data.get("user"):
                raise ValueError("give user and password_file, or api_key_file, not both")
            return file

    def __init__(self, options: Options) -> None:
        """Raises SettingsError for files that cannot be read."""
        self._options = options
        self._made = Actions(
            Template(options.index),
            Template(options.id) if options.id else None,
            Template(options.routing) if options.routing else None,
            options.scn_field,
        )
        self._client = HttpClient(
            options.url,
            _Login(options),
            connect_timeout_s=options.connect_timeout_s,
            response_timeout_s=options.answer_timeout_s,
            max_bytes=_MAX_ANSWER_BYTES,
        )
        self._template = _template(options.index_template)
        self._actions: dict[Place, Action] = {}  # the last of each document

    def open(self, opening: Opening) -> Position | None:
        """Put the index template, if there is one. The target keeps no position."""
        if self._template is not None:
            answer = self._post(f"/_index_template/databus-{opening.sink}", self._template)
            body_of(answer, f"{self._options.url}/_index_template")
        return None

    def write(self, changes: Sequence[Change]) -> None:
        """Collect actions; raise SinkRefusedError for a row of which there are none."""
        for change in changes:
            if change.op is ChangeOp.TRUNCATE:
                self._empty(change)
            elif change.op not in MARKS:
                self._actions.update(self._made.of(change))

    def flush(self) -> Position | None:
        """Send what was collected."""
        actions = list(self._actions.values())
        while actions:
            size, count = 0, 0
            while count < len(actions) and (not count or size < self._options.bulk_bytes):
                size += len(actions[count].lines)
                count += 1
            self._send(actions[:count])
            actions = actions[count:]
        self._actions = {}
        return None

    def close(self) -> None:
        """Close the connection; what was not flushed is dropped."""
        self._client.close()

    def _send(self, actions: Sequence[Action]) -> None:
        changes = [one.change for one in actions]
        where = f"{self._options.url}/_bulk"
        answer = self._post("/_bulk", b"".join(one.lines for one in actions))
        check_items(body_of(answer, where, changes), changes, where)

    def _empty(self, change: Change) -> None:
        """Delete the documents of a source that are not newer than the TRUNCATE.

        A deleted document's version is one more than its SCN: a newer one that is deleted, because
        the TRUNCATE comes again, could not be put again.
        """
        field = self._options.scn_field
        if not field:
            raise SinkRefusedError(f"TRUNCATE of {change.source}: there is no scn_field", change)
        index = self._made.index_of_source(change)
        self.flush()
        path, where = f"/{quote(index, safe='')}", f"{self._options.url}/{index}"
        refreshed = self._post(f"{path}/_refresh", b"")
        if refreshed.status == 404:
            return  # there is no such index yet
        body_of(refreshed, where)
        body = json.dumps({"query": {"range": {field: {"lte": change.scn}}}}).encode()
        answer = self._post(f"{path}/_delete_by_query?refresh=true", body)
        if answer.status == 409:
            raise SinkUnavailableError(f"{where}: documents have changed during a TRUNCATE")
        found = body_of(answer, where, [change])
        if found["timed_out"] or found["failures"]:
            raise SinkUnavailableError(f"{where}: a TRUNCATE has not deleted all documents")

    def _post(self, path: str, body: bytes) -> Response:
        try:
            return self._client.post(path, body)
        except FAILURES as error:
            raise SinkUnavailableError(f"{self._options.url}: {printable(error)}") from error


class _Login:
    """The login for each connection; a new password needs no restart."""

    def __init__(self, options: SearchSink.Options) -> None:
        """Raises SettingsError for files that cannot be read."""
        self._options = options
        self.headers()

    def headers(self) -> dict[str, str]:
        """Return the header of the login."""
        options = self._options
        if options.api_key_file is not None:
            return {"Authorization": f"ApiKey {private_line('api_key_file', options.api_key_file)}"}
        return basic_login(options.user, options.password_file)

    def tls(self) -> ssl.SSLContext:
        """Return the TLS context."""
        return client_context(self._options.tls_ca)


def _template(file: Path | None) -> bytes | None:
    if file is None:
        return None
    try:
        text = file.read_bytes()
        json.loads(text)
    except (OSError, ValueError) as error:
        raise SettingsError(f"index_template {file}: {error}") from error
    return text
