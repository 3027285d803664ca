"""What an error of Redis means for a sink: wait, refuse a row, or stop."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from redis.exceptions import (
    ClusterDownError,
    ConnectionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    TimeoutError,
    TryAgainError,
)

from databus.client.sinks.errors import SinkError, SinkRefusedError, SinkUnavailableError

# What passes: a server is full, loads, cannot save, has become a replica. The library has classes
# for some codes; older servers put a script's name before the code, and then it is a text.
_PASSING = (ClusterDownError, OutOfMemoryError, ReadOnlyError, TryAgainError)
_PASSES = re.compile(r"\b(LOADING|OOM|MISCONF|READONLY|NOREPLICAS|BUSY|MASTERDOWN)\b")
_REFUSED = re.compile(r"\bWRONGTYPE\b|exceeds maximum allowed size")


@contextmanager
def sink_errors(where: str) -> Iterator[None]:
    """Raise what a sink raises for errors of Redis; `where` is its address."""
    try:
        yield
    except (ConnectionError, TimeoutError) as error:
        # A login that fails is one of these: it is no row's fault.
        raise SinkUnavailableError(f"{where}: {error}") from error
    except RedisError as error:
        raise _sink_error(error, f"{where}: {type(error).__name__}: {error}") from error


def _sink_error(error: RedisError, problem: str) -> SinkError:
    if isinstance(error, _PASSING) or _PASSES.search(problem):
        return SinkUnavailableError(problem)
    return SinkRefusedError(problem) if _REFUSED.search(problem) else SinkError(problem)
