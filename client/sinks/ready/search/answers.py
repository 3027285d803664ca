"""What the answers of a search server mean for a sink: done, wait, or a refused row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from databus.client.sinks.contract import Change
from databus.client.sinks.errors import SinkError, SinkRefusedError, SinkUnavailableError
from databus.client.sinks.ready.webhook import retry_after_s
from databus.daemon.http.client import Response, excerpt

_CONFLICT = 409  # a newer version is there
_NOT_FOUND = 404  # of a delete: the document was not there
_REFUSED = frozenset({400, 413})
_LOGIN = frozenset({401, 403})  # no row's fault
_BLOCKED = "cluster_block_exception"  # as of a disk that is full


def body_of(answer: Response, where: str, changes: Sequence[Change] = ()) -> Any:
    """Return the JSON of an answer; raise what another status than 200 means."""
    if answer.status in (200, 201):
        try:
            return json.loads(bytes(answer.body))
        except ValueError as error:
            raise SinkError(f"{where}: the answer is no JSON: {error}") from error
    said = bytes(answer.body).decode("utf-8", "replace")
    problem = f"{where} answered {answer.status} {excerpt(answer.reason.encode())}"
    problem += f": {excerpt(bytes(answer.body))}"
    if answer.status in _LOGIN or _passes(answer.status, said):
        raise SinkUnavailableError(problem, retry_after_s(answer.headers, datetime.now(UTC)))
    if answer.status in _REFUSED and changes:
        raise SinkRefusedError(problem, changes[0] if len(changes) == 1 else None)
    raise SinkError(problem)


def check_items(body: Any, changes: Sequence[Change], where: str) -> None:
    """Raise SinkUnavailableError or SinkRefusedError if an item of a bulk answer has failed."""
    if not body["errors"]:
        return
    refused: SinkRefusedError | None = None
    for item, change in zip(body["items"], changes, strict=True):
        ((action, result),) = item.items()
        status, why = result["status"], result.get("error")
        if why is None or status == _CONFLICT:
            continue
        if action == "delete" and status == _NOT_FOUND and "index_not_found" in str(why):
            continue
        problem = f"{where}: {result['_index']}/{result['_id']}: {_reason(why)}"
        if _passes(status, str(why)):
            raise SinkUnavailableError(problem)
        refused = refused or SinkRefusedError(problem, change)
    if refused is not None:
        raise refused


def _passes(status: int, said: str) -> bool:
    return status == 429 or status >= 500 or _BLOCKED in said


def _reason(why: dict[str, Any]) -> str:
    """Return type and reason of an error, and those of its cause."""
    found = f"{why.get('type')}: {why.get('reason')}"
    cause = why.get("caused_by")
    return excerpt((f"{found} ({_reason(cause)})" if cause else found).encode())
