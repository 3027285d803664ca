"""Classifies errors as transient or permanent, by one rule for the whole project. Pure.

*Transient*: the operation may succeed later without any change to Databus. Examples are a server
that is down, a disk that is full or read-only, a folder without permission, a file that another
process has locked, no free descriptor. It is retried for ever, with back-off, and shown while it
lasts. *Permanent*: everything else. It stops what it concerns, and its text tells what to do.

An error that wraps another one (`raise … from …`) is as transient as the wrapped one, unless its
type is always final.
"""

from __future__ import annotations

import errno
import sqlite3
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from socket import gaierror

from databus.leases.errors import LeaseLostError, LeaseUnavailableError, StaleTermError
from databus.schemas.errors import (
    RequestError,
    ServerError,
    SourceStoppedError,
    SourceUnavailableError,
)

# This machine lacks something: disk space, rights, descriptors, memory, threads, a working disk.
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
        # A disk that was remounted, or rights that were changed, while the daemon runs. At a first
        # start these are reported as an error in the settings.
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
    }
)
# Something else is not available: a network, a server, a lock that another process holds.
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
_UNAVAILABLE = (LeaseUnavailableError, ServerError, SourceUnavailableError)
_NO_THREAD = "can't start new thread"  # Python's RuntimeError for EAGAIN, without the number


def is_transient(error: BaseException) -> bool:
    """Return whether an error is transient, so that retrying for ever is right."""
    for one in _chain(error):
        if isinstance(one, SourceStoppedError):
            return False
        if isinstance(one, _UNAVAILABLE) or _passes(one):
            return True
        if isinstance(one, RequestError) and one.server:
            return True  # the refusing server's settings may be changed
    return False


def trace_of(error: BaseException) -> BaseException | None:
    """Return the error as `exc_info=` of a log record; None for a transient one.

    The text of a transient error is sufficient, and it may be logged every second. That a lease
    went to another process is no mistake of the code either.
    """
    is_taken = any(isinstance(one, LeaseLostError | StaleTermError) for one in _chain(error))
    return None if is_taken or is_transient(error) else error


def describe(error: BaseException) -> str:
    """Return an error's text, with advice if a disk is full."""
    text = str(error) or repr(error)
    is_full = any(_is_full(one) for one in _chain(error))
    if not is_full or "make room" in text:
        return text
    return f"the disk is full: {text}; make room: nothing is lost"


def _is_full(error: BaseException) -> bool:
    if isinstance(error, sqlite3.Error):
        return sqlite_code(error) == sqlite3.SQLITE_FULL
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_of_this_machine(error: BaseException) -> bool:
    """Return whether this machine lacks something: disk space, rights, descriptors, memory."""
    return any(_is_resource(one) for one in _chain(error))


def is_passing_code(error: sqlite3.Error) -> bool:
    """Return whether an error of SQLite is transient."""
    return sqlite_code(error) in _RESOURCE_CODES | _PASSING_CODES


def sqlite_code(error: sqlite3.Error) -> int:
    """Return the primary result code of an SQLite error; 0 if it has none."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


@contextmanager
def as_sqlite_errors() -> Iterator[None]:
    """Turn a UnicodeDecodeError of an SQLite call into a DatabaseError.

    Python raises it if the text of an SQLite error is not UTF-8. The text quotes names, which in
    a damaged file can be any bytes.
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
    """Yield an error and its causes, the outermost first."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        # PyMySQL stores the socket's error in an attribute of its own.
        found = found.__cause__ or getattr(found, "original_exception", None)


def _passes(error: BaseException) -> bool:
    if _is_resource(error):
        return True
    if isinstance(error, sqlite3.Error):
        return is_passing_code(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return False  # checked first, because it is an OSError, too
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
