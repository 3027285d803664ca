"""Which errors pass by themselves."""

from __future__ import annotations

import errno
import os
import socket
import sqlite3
import ssl
from contextlib import closing
from pathlib import Path

import pymysql
import pytest

from databus.daemon.faults import is_of_this_machine, is_transient
from databus.schemas.errors import (
    CheckpointError,
    DatabusError,
    RingCorruptError,
    RingError,
    SettingsError,
    SourceStoppedError,
    SourceUnavailableError,
)


def wrapped(outer: Exception, inner: BaseException) -> Exception:
    outer.__cause__ = inner
    return outer


NO_ROOM = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    "error",
    [
        NO_ROOM,
        OSError(errno.EMFILE, "Too many open files"),
        OSError(errno.EIO, "Input/output error"),
        OSError(errno.EROFS, "Read-only file system"),
        PermissionError(errno.EACCES, "Permission denied"),
        PermissionError(errno.EPERM, "Operation not permitted"),
        MemoryError(),
        RuntimeError("can't start new thread"),
        wrapped(RingError("MaxSCN cannot be saved"), NO_ROOM),
        wrapped(CheckpointError("cannot be written"), NO_ROOM),
        wrapped(ValueError("the history of …"), NO_ROOM),
        wrapped(DatabusError("…"), wrapped(ValueError("…"), NO_ROOM)),
    ],
)
def test_what_a_machine_lacks_is_transient_however_it_is_wrapped(error: Exception) -> None:
    assert is_transient(error)
    assert is_of_this_machine(error)


@pytest.mark.parametrize(
    "error",
    [
        SourceUnavailableError("no route"),
        ConnectionRefusedError(errno.ECONNREFUSED, "refused"),
        TimeoutError(),
        socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
        ssl.SSLError(1, "wrong version number"),
        OSError(errno.EHOSTUNREACH, "No route to host"),
    ],
)
def test_what_somebody_elses_machine_lacks_is_transient_too(error: Exception) -> None:
    assert is_transient(error)
    assert not is_of_this_machine(error)


@pytest.mark.parametrize(
    "error",
    [
        RingError("SCNs must rise"),
        RingCorruptError("shop.ring", "damaged"),
        SettingsError("is not a setting"),
        FileNotFoundError(errno.ENOENT, "No such file"),
        ssl.SSLCertVerificationError(1, "certificate verify failed"),
        ValueError("a bug"),
        RuntimeError("a bug"),
        # Whoever stops says what to do, whatever it came from.
        wrapped(SourceStoppedError("shop", 1, "do this"), NO_ROOM),
    ],
)
def test_what_needs_somebody_is_not(error: Exception) -> None:
    assert not is_transient(error)


def test_a_driver_out_of_descriptors_is_this_machines_fault() -> None:
    error = pymysql.err.OperationalError(2003, "Can't connect")
    error.original_exception = OSError(errno.EMFILE, "Too many open files")  # type: ignore[attr-defined]
    assert is_of_this_machine(wrapped(SourceUnavailableError("…"), error))


def test_a_lock_of_somebody_else_passes_and_a_file_that_is_no_database_does_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as one, closing(sqlite3.connect(path, timeout=0)) as other:
        one.execute("CREATE TABLE t (a)")
        one.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError) as busy:
            other.execute("BEGIN IMMEDIATE")
        other.execute("PRAGMA query_only = on")
        with pytest.raises(sqlite3.OperationalError) as read_only:
            other.execute("CREATE TABLE u (a)")
    assert is_transient(busy.value)
    assert is_transient(read_only.value)
    assert is_of_this_machine(read_only.value)
    (tmp_path / "text").write_text("no database " * 100)
    with (
        closing(sqlite3.connect(tmp_path / "text")) as none,
        pytest.raises(sqlite3.DatabaseError) as damaged,
    ):
        none.execute("SELECT * FROM t")
    assert not is_transient(damaged.value)
