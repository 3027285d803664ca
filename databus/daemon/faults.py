"""Which errors pass by themselves, and which need somebody: one rule for all of the project. Pure.

*Transient*: the same may go well later although nobody does anything to Databus: a server
that is down, a disk that is full or was made read-only, a folder whose rights were taken,
a file that another process holds, no descriptor left. It is tried again for ever, with
back-off, and shown while it lasts. *Permanent*: everything else; it stops what it concerns
and says what to do.

An error that wraps another (`raise … from …`) is as transient as that one, but for those
that say of themselves that they are final.
"""

from __future__ import annotations

import errno
import sqlite3
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from socket import gaierror

from databus.schemas.errors import (
    RequestError,
    ServerError,
    SourceStoppedError,
    SourceUnavailableError,
)

# Of this machine: room on a disk, rights, descriptors, memory, threads, a disk that does not
# answer.
_RESOURCE_ERRNOS = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENOBUFS,
        errno.EIO,
        errno.EAGAIN,
        # A disk that was remounted, rights that were changed: they come back as they went. What
        # cannot be written at the first start is an error of whoever opens it.
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
    }
)
# Of somebody else, who may be back: a network, a server, a process that holds a lock.
_PASSING_ERRNOS = frozenset(
    {
        errno.EBUSY,
        errno.EINTR,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETRESET,
        errno.ENETUNREACH,
        errno.EADDRNOTAVAIL,
        errno.ENOTCONN,
        errno.ETXTBSY,
    }
)
_RESOURCE_CODES = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_PERM,
    }
)
_PASSING_CODES = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_SCHEMA,
        sqlite3.SQLITE_PROTOCOL,
    }
)
_NO_THREAD = "can't start new thread"  # a RuntimeError without a number, where EAGAIN is meant


def is_transient(error: BaseException) -> bool:
    """Return whether an error may pass by itself, so that a retry for ever is right."""
    for one in _chain(error):
        if isinstance(one, SourceStoppedError):
            return False
        if isinstance(one, SourceUnavailableError | ServerError) or _passes(one):
            return True
        if isinstance(one, RequestError) and one.server:
            return True  # a server that refuses today may be set up otherwise tomorrow
    return False


def trace_of(error: BaseException) -> BaseException | None:
    """Return what a log record shows the way of, as `exc_info=`: nothing that passes by itself.

    Its text says all that there is to do, and it may come every second.
    """
    return None if is_transient(error) else error


def describe(error: BaseException) -> str:
    """Return what to say of an error: its text, and what to do where a disk is full."""
    text = str(error) or repr(error)
    is_full = any(_is_full(one) for one in _chain(error))
    return f"{text}; make room: nothing is lost" if is_full and "make room" not in text else text


def _is_full(error: BaseException) -> bool:
    if isinstance(error, sqlite3.Error):
        return sqlite_code(error) == sqlite3.SQLITE_FULL
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_of_this_machine(error: BaseException) -> bool:
    """Return whether this machine lacks something: disk space, rights, descriptors, memory."""
    return any(_is_resource(one) for one in _chain(error))


def is_passing_code(error: sqlite3.Error) -> bool:
    """Return whether an error of SQLite passes by itself."""
    return sqlite_code(error) in _RESOURCE_CODES | _PASSING_CODES


def sqlite_code(error: sqlite3.Error) -> int:
    """Return SQLite's number of an error, without what is particular; 0 when it has none."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


@contextmanager
def as_sqlite_errors() -> Iterator[None]:
    """Make one of SQLite's of the error that Python has when SQLite's own is no UTF-8.

    SQLite quotes names, and those of a damaged file can be any bytes.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        said = error.object.decode(errors="backslashreplace")
        damaged = sqlite3.DatabaseError(said)
        damaged.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        damaged.sqlite_errorname = "SQLITE_CORRUPT"
        raise damaged from error


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what it came from, the outermost first."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        # PyMySQL keeps the socket's own error under a name of its own.
        found = found.__cause__ or getattr(found, "original_exception", None)


def _passes(error: BaseException) -> bool:
    if _is_resource(error):
        return True
    if isinstance(error, sqlite3.Error):
        return is_passing_code(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return False  # an OSError, too
    return isinstance(error, ConnectionError | TimeoutError | gaierror | ssl.SSLError) or (
        isinstance(error, OSError) and error.errno in _PASSING_ERRNOS
    )


def _is_resource(error: BaseException) -> bool:
    if isinstance(error, sqlite3.Error):
        return sqlite_code(error) in _RESOURCE_CODES
    if isinstance(error, ssl.SSLError):
        return False  # an OSError whose numbers are OpenSSL's: its 1 is not EPERM
    if isinstance(error, OSError):
        return error.errno in _RESOURCE_ERRNOS
    if isinstance(error, RuntimeError):
        return _NO_THREAD in str(error)
    return isinstance(error, MemoryError)
