"""What the answers of a ClickHouse server mean for a sink: done, wait, a refused row, or stop."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from databus.client.sinks.contract import Change
from databus.client.sinks.errors import SinkError, SinkRefusedError, SinkUnavailableError
from databus.client.sinks.ready.webhook import retry_after_s
from databus.daemon.http.client import Response, excerpt

KEY_COLUMN = 524  # ALTER_OF_COLUMN_IS_FORBIDDEN
_HEADER = "x-clickhouse-exception-code"
_CODE = re.compile(r"Code: (\d+)\.")
# The names are those of ClickHouse's ErrorCodes.cpp.
_AWAY = frozenset(
    {
        *(159, 160, 201, 202, 203, 209, 210),  # time-outs, quotas, too many queries, networks
        *(225, 999),  # NO_ZOOKEEPER, KEEPER_EXCEPTION
        *(236, 241, 242, 243),  # ABORTED, MEMORY_LIMIT_EXCEEDED, TABLE_IS_READ_ONLY, no space
        *(252, 279, 285, 286, 289, 319),  # TOO_MANY_PARTS, replicas and quorums
        *(341, 394, 425, 439, 473, 499, 517, 745),  # busy, cancelled, S3_ERROR, SERVER_OVERLOADED
    }
)
_ANSWERS_AWAY = frozenset({408, 429, 502, 503, 504})
_LOGIN = frozenset({192, 193, 194, 195, 516})
_DENIED = frozenset({164, 497})  # READONLY, ACCESS_DENIED
_UNKNOWN = {
    16: "a column is not there",
    47: "a column is not there",
    60: "the table is not there",
    81: "the database is not there: create it, or set `database`",
    218: "the table is not there",
}
_REFUSED = frozenset(
    {
        *(6, 25, 26, 27, 33, 38, 41, 72),  # CANNOT_PARSE_…, CANNOT_READ_ALL_DATA
        *(53, 69, 70, 117, 128, 131),  # types, ranges, INCORRECT_DATA, sizes
        *(321, 349, 395, 407, 469, 691),  # NULL, a function that throws, VIOLATED_CONSTRAINT, …
    }
)


def check(answer: Response, where: str, changes: Sequence[Change] = ()) -> None:
    """Raise what an answer means that is no success; `changes` are the rows that were sent."""
    code = _code(answer)
    if answer.status == 200 and not code:
        return
    said = excerpt(bytes(answer.body)) or excerpt(answer.reason.encode())
    problem = f"{where} answered {answer.status}: {said}"
    if code in _LOGIN or (not code and answer.status in (401, 403)):
        raise SinkUnavailableError(f"the login failed: check user and password_file: {problem}")
    if code in _DENIED:
        raise SinkUnavailableError(
            "the user lacks a right: GRANT SELECT, INSERT, CREATE TABLE, ALTER on the database, "
            f"and a profile that is not readonly: {problem}"
        )
    if code in _AWAY or (not code and answer.status in _ANSWERS_AWAY):
        raise SinkUnavailableError(problem, retry_after_s(answer.headers, datetime.now(UTC)))
    if code in _REFUSED and changes:
        raise SinkRefusedError(problem, changes[0] if len(changes) == 1 else None)
    if code in _UNKNOWN:
        raise SinkError(f"{_UNKNOWN[code]}: {problem}")
    raise SinkError(problem)


def _code(answer: Response) -> int:
    given = answer.headers.get(_HEADER, "")
    if given.isdigit():
        return int(given)
    if answer.status == 200:
        return 0
    found = _CODE.search(bytes(answer.body[:200]).decode("latin-1"))
    return int(found[1]) if found else 0
