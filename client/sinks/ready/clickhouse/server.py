"""Statements to a ClickHouse server, by its HTTP interface.

There is a library, clickhouse-connect. It writes dates without a look at their range, cuts digits
of decimals, and retries by itself; here the row at fault must be known, and the sink has retries.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

from databus.client.sinks.contract import Change
from databus.client.sinks.errors import SinkError, SinkUnavailableError
from databus.client.sinks.ready.clickhouse.answers import check
from databus.client.sinks.ready.clickhouse.names import identifier
from databus.client.sinks.ready.clickhouse.options import ClickHouseOptions, Login
from databus.daemon.http.client import FAILURES, HttpClient, Response, printable

_MAX_ANSWER_BYTES = 64 << 20
# Servers close connections that are idle for their keep_alive_timeout, which was 3 s for long: a
# statement on one of these would fail.
_MOST_IDLE_S = 2.0
# An answer tells that rows are there, and an error comes before it; an ALTER has changed the rows
# at rest.
_SETTINGS = {
    "wait_end_of_query": "1",
    "async_insert": "0",
    "mutations_sync": "1",
}


class Server:
    """One server, and one of its databases."""

    def __init__(self, options: ClickHouseOptions) -> None:
        """Raises SettingsError for files that cannot be read."""
        self.database, self._url = options.database, options.url
        self._client = HttpClient(
            options.url,
            Login(options),
            connect_timeout_s=options.connect_timeout_s,
            response_timeout_s=options.answer_timeout_s,
            max_bytes=_MAX_ANSWER_BYTES,
        )
        self._used_s = 0.0

    def place(self, table: str) -> str:
        """Return the whole name of a table, for statements."""
        return f"{identifier(self.database)}.{identifier(table)}"

    def run(self, statement: str) -> None:
        """Run a statement; raise SinkError."""
        check(self._post({}, statement.encode()), self._url)

    def rows(self, query: str) -> list[dict[str, Any]]:
        """Return the rows of a query; raise SinkError."""
        answer = self._post({}, f"{query} FORMAT JSONEachRow".encode())
        check(answer, self._url)
        try:
            return [json.loads(line) for line in bytes(answer.body).splitlines()]
        except ValueError as error:
            raise SinkError(f"{self._url}: that is no answer of ClickHouse: {error}") from error

    def insert(self, statement: str, rows: bytes, changes: Sequence[Change]) -> None:
        """Insert rows in RowBinary; raise SinkError, SinkRefusedError for one of the changes."""
        answer = self._post({"query": f"{statement} FORMAT RowBinary"}, rows)
        check(answer, self._url, changes)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _post(self, parameters: dict[str, str], body: bytes) -> Response:
        if time.monotonic() - self._used_s > _MOST_IDLE_S:
            self._client.close()
        # The same rows again are no duplicates that the server drops: they may have been lost.
        token = {"insert_deduplication_token": uuid4().hex}
        try:
            return self._client.post(f"/?{urlencode({**_SETTINGS, **token, **parameters})}", body)
        except FAILURES as error:
            raise SinkUnavailableError(f"{self._url}: {printable(error)}") from error
        finally:
            self._used_s = time.monotonic()
