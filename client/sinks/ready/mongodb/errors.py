"""What an error of MongoDB means for a sink: wait, refuse a row, or stop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from bson.errors import InvalidDocument
from pymongo.errors import (
    BulkWriteError,
    ConnectionFailure,
    DocumentTooLarge,
    OperationFailure,
    PyMongoError,
)

from databus.client.sinks.contract import Change
from databus.client.sinks.errors import SinkError, SinkRefusedError, SinkUnavailableError
from databus.daemon.http.client import excerpt

# By the names that MongoDB's error_codes.yml has.
_DUPLICATE_KEY = 11000
_REFUSED_LOGIN = 18
_LOGIN = {
    _REFUSED_LOGIN: "check the user of `url`, its authSource, and password_file",
    13: "the user needs the role readWrite on this database, and url a user",  # Unauthorized
    8000: "check the user of `url`, and password_file",  # AtlasError
}
_NO_TRANSACTIONS = 20  # IllegalOperation
_PASSING = frozenset(
    {6, 7, 89, 91, 189, 9001}  # hosts and networks, shut-down, stepped down
    | {10058, 10107, 11600, 11602, 13388, 13435, 13436}  # not primary, interrupted, stale
    | {24, 46, 50, 64, 112, 202, 225, 226, 244, 246, 251, 262, 290}  # locks, time, conflicts
    | {14031, 39, 133, 134, 317}  # full disks, no primary to read from, the pool was cleared
)
_PASSING_LABELS = (
    "RetryableWriteError",
    "TransientTransactionError",
    "UnknownTransactionCommitResult",
)
# A name that cannot be, a view, a document that is too large, or nested too deeply.
_REFUSED = frozenset({2, 15, 73, 166, 13297, 10334, 17419, 17420})


class CollisionError(SinkRefusedError):
    """A unique index of the user's own has a value already: maybe of a row of the same flush."""


@contextmanager
def sink_errors(where: str, changes: Sequence[Change] = ()) -> Iterator[None]:
    """Raise what a sink raises for errors of MongoDB; `where` is its address.

    Of a bulk write `changes` has one for each operation, in the same order.
    """
    try:
        yield
    except BulkWriteError as error:
        raise _bulk_error(error, changes, where) from error
    except (DocumentTooLarge, InvalidDocument) as error:
        raise SinkRefusedError(f"{where}: {error}", _only(changes)) from error
    except PyMongoError as error:
        raise _sink_error(error, changes, where) from error


def is_race(failed: Mapping[str, Any]) -> bool:
    """Return whether an operation inserted an `_id` that another process inserted just then."""
    return _is_duplicate(failed) and failed.get("keyPattern") == {"_id": 1}


def is_collision(failed: Mapping[str, Any]) -> bool:
    """Return whether an operation failed for a unique index of the user's own."""
    return _is_duplicate(failed) and not is_race(failed)


def _is_duplicate(failed: Mapping[str, Any]) -> bool:
    found: bool = failed["code"] == _DUPLICATE_KEY
    return found


def _bulk_error(error: BulkWriteError, changes: Sequence[Change], where: str) -> SinkError:
    failed = error.details["writeErrors"]
    passing = next((one for one in failed if one["code"] in {*_PASSING, *_LOGIN}), None)
    if passing is not None or _has_passing_label(error):
        return SinkUnavailableError(f"{where}: {_said(passing or {'errmsg': str(error)})}")
    if not failed:  # written, and not yet confirmed by the majority
        (first, *_) = error.details["writeConcernErrors"]
        return SinkUnavailableError(f"{where}: {_said(first)}")
    first = next((one for one in failed if not is_race(one)), None)
    if first is None:
        return SinkUnavailableError(f"{where}: another process writes the same documents")
    refused = CollisionError if is_collision(first) else SinkRefusedError
    return refused(f"{where}: {_said(first)}", changes[first["index"]])


def _sink_error(error: PyMongoError, changes: Sequence[Change], where: str) -> SinkError:
    code = error.code if isinstance(error, OperationFailure) else None
    problem = f"{where}: {_short(str(error))}"
    if code in _LOGIN:  # no row's fault
        return SinkUnavailableError(f"{problem}: {_LOGIN[code]}")
    if isinstance(error, ConnectionFailure) or code in _PASSING or _has_passing_label(error):
        return SinkUnavailableError(problem)
    if code == _NO_TRANSACTIONS:
        return SinkError(f"{problem}: exactly_once needs a replica set, or a sharded cluster")
    if code in _REFUSED and changes:
        return SinkRefusedError(problem, _only(changes))
    return SinkError(problem)


def _has_passing_label(error: PyMongoError) -> bool:
    return any(map(error.has_error_label, _PASSING_LABELS))


def _only(changes: Sequence[Change]) -> Change | None:
    return changes[0] if len(changes) == 1 else None


def _said(failed: Mapping[str, Any]) -> str:
    """Return what the server says, with the reason of a validation."""
    code = f" (code {failed['code']})" if "code" in failed else ""
    details = (failed.get("errInfo") or {}).get("details")
    return _short(f"{failed['errmsg']}{code}{f': {details}' if details else ''}")


def _short(text: str) -> str:
    # What the driver knows of all servers is longer than the error before it.
    return excerpt(text.partition(", Topology Description")[0].encode())
