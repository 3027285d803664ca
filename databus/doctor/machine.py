"""The checks of `databus doctor` on this machine: ports, disks, files, certificates.

Changes nothing: a tried port is released, and a missing folder is
not created.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import ssl
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from databus.cli.api_client import ApiClient
from databus.conf.settings import HttpSettings
from databus.conf.units import size_text
from databus.daemon.files import wide_files
from databus.doctor.checks import Check, error, ok, warning
from databus.schemas.errors import DatabusError

EXPIRES_SOON_DAYS = 30
ASK_S = 3.0
# What is left when everything is as large as it may be.
SPARE_BYTES = 256 << 20
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_OF_A_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "glusterfs", "ceph"})


def filesystem_of(path: Path) -> str:
    """Return the kernel's name of a path's file system; "" if unknown."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    found, longest = "", -1
    place = str(path.resolve())
    for line in lines:
        before, _, after = line.partition(" - ")
        # The kernel writes a space in a path as \040.
        mount = before.split()[4].encode().decode("unicode_escape")
        is_below = mount == "/" or place == mount or place.startswith(f"{mount}/")
        # The innermost mount; of several at one place, the last.
        if is_below and len(mount) >= longest:
            found, longest = after.split()[0], len(mount)
    return found


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine as checks see it; tests replace it."""

    now_s: Callable[[], float] = time.time
    free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free
    filesystem: Callable[[Path], str] = filesystem_of
    cores: Callable[[], int] = lambda: len(os.sched_getaffinity(0))


MACHINE = Machine()


@dataclass(frozen=True, slots=True)
class Growth:
    """How much files may still grow, and why; `is_sure` when they will."""

    size_bytes: int
    what: str
    is_sure: bool = True


def check_cores(serving_processes: int, machine: Machine) -> Iterator[Check]:
    """Check that a relay's processes that serve, and the one that captures, have a core each."""
    cores, subject = machine.cores(), "serving_processes"
    if not serving_processes:
        return
    if serving_processes < cores:
        yield ok(subject, f"{serving_processes} serve and one captures, on {cores} cores")
        return
    yield warning(
        subject,
        f"{serving_processes} serve and one captures, and there are {cores} cores: they take time "
        f"from capture; set at most {max(1, cores - 1)}, or 0 for one process that does both",
    )


def check_port(http: HttpSettings, service: str, *, is_running: bool) -> Check:
    """Check whether a daemon can listen at the address of its settings, or does already."""
    place = f"{http.host}:{http.port}"
    if http.port == 0:
        return ok("http.port", f"{place}: a free port is taken at each start")
    try:
        family, *_, address = socket.getaddrinfo(http.host, http.port, type=socket.SOCK_STREAM)[0]
        with socket.create_server(address[:2], family=family):
            return ok("http.port", f"{place} can be bound")
    except OSError as problem:
        if problem.errno == errno.EADDRINUSE:
            return _who_answers(http, service, is_running=is_running)
        if problem.errno == errno.EACCES:
            rule = "may not be bound by this user: choose a port above 1023 (http.port)"
            return error("http.port", f"{place} {rule}")
        why = problem.strerror or problem
        return error("http.port", f"{place} cannot be bound: {why}; see http.host and http.port")


def check_folder(subject: str, folder: Path, needed: Growth, machine: Machine) -> list[Check]:
    """Check a data folder: permission to write, and free space."""
    # The folder may not exist yet: then its nearest parent counts.
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        return [error(subject, f"{there} is no folder; name another {subject}")]
    if not os.access(there, os.W_OK | os.X_OK):
        rule = f"this user may not write there; chown it, or run as the user that owns {there}"
        return [error(subject, f"{folder}: {rule}")]
    kind = machine.filesystem(there)
    found = []
    if kind in _IN_MEMORY:
        text = f"{folder} lies in memory ({kind}) and is gone after a restart of the machine"
        found.append(warning(subject, f"{text}; name a folder on a disk"))
    elif kind in _OF_A_NETWORK:
        text = f"{folder} lies on a network ({kind}), where locks and mapped files may not hold"
        found.append(warning(subject, f"{text}; name a folder on a local disk"))
    return [*found, *_privacy(subject, folder), _room(folder, there, needed, kind, machine)]


def check_secret_file(subject: str, path: Path, *, is_refused: bool = False) -> Check:
    """Check a file with a secret: it exists, and only its owner can read it.

    `is_refused`: daemons refuse a file that others can read.
    """
    try:
        mode = path.stat().st_mode
        # stat() does not tell whether this user may read it.
        path.open("rb").close()
    except OSError as problem:
        return error(subject, f"{path}: {problem.strerror}; write it, for the daemon's user alone")
    if mode & stat.S_IRWXO:
        say = error if is_refused else warning
        return say(subject, f"{path} may be read by others: chmod 600 {path}")
    if mode & stat.S_IRWXG:
        return warning(subject, f"{path} may be read by its group: chmod 600 {path}")
    return ok(subject, f"{path} is for its owner alone")


def check_secret_env(subject: str, variable: str) -> Check:
    """Check whether an environment variable is set; its value is not shown."""
    if os.environ.get(variable):
        return ok(subject, f"{variable} is set")
    text = f"{variable} is not set here; set it in the daemon's environment, and for this command"
    return error(subject, text)


def check_certificate(subject: str, path: Path, machine: Machine) -> Check:
    """Check the expiry of the certificates of a PEM file."""
    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as problem:
        return error(subject, f"{path}: {problem.strerror}")
    except ValueError as problem:
        return error(subject, f"{path} has no certificate in PEM: {problem}")
    now = datetime.fromtimestamp(machine.now_s(), UTC)
    # The first certificate to expire makes the chain invalid.
    first = min(found, key=lambda one: one.not_valid_after_utc)
    until = first.not_valid_after_utc
    name = first.subject.rfc4514_string() or "a certificate"
    days = (until - now).total_seconds() / 86400
    if days < 0:
        return error(subject, f"{path}: {name} expired on {until:%Y-%m-%d}; renew it and restart")
    if any(one.not_valid_before_utc > now for one in found):
        return error(subject, f"{path}: {name} is not good yet; look at this machine's clock")
    if days < EXPIRES_SOON_DAYS:
        text = f"{path}: {name} expires on {until:%Y-%m-%d}, in {days:.0f} days; renew it"
        return warning(subject, text)
    return ok(subject, f"{path} is good until {until:%Y-%m-%d}")


def check_key(subject: str, cert: Path, key: Path) -> Check:
    """Check whether a key belongs to a certificate, and only its owner can read it."""
    file = check_secret_file(subject, key)
    try:
        # Without a password function OpenSSL would ask on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, lambda: "")
    except (OSError, ssl.SSLError) as problem:
        return error(subject, f"{key} is not the key of {cert}: {problem}")
    return file


def _privacy(subject: str, folder: Path) -> list[Check]:
    wide = wide_files(folder)
    if not wide:
        return []
    text = f"{folder}: others may read {', '.join(path.name for path in wide[:3])}"
    more = f" and {len(wide) - 3} more" if len(wide) > 3 else ""
    advice = f"chmod 600 {wide[0]}{' …' if wide[1:] else ''}, as its next start does with its own"
    return [warning(subject, f"{text}{more}, which go around the tokens; {advice}")]


def _room(folder: Path, there: Path, needed: Growth, kind: str, machine: Machine) -> Check:
    free = machine.free_bytes(there)
    may = "needed" if needed.is_sure else "may be needed"
    text = (
        f"{folder}: {size_text(free)} free, {size_text(needed.size_bytes)} {may} for {needed.what}"
    )
    if free < needed.size_bytes and needed.is_sure:
        return error("disk", f"{text}; make room, or set less in the settings")
    if free < needed.size_bytes + SPARE_BYTES:
        return warning("disk", f"{text}: it may be full one day; make room")
    return ok("disk", f"{text}{f' ({kind})' if kind else ''}")


def _who_answers(http: HttpSettings, service: str, *, is_running: bool) -> Check:
    place = f"{http.host}:{http.port}"
    host = f"[{http.host}]" if ":" in http.host else http.host
    scheme = "https" if http.tls_cert else "http"
    server = ApiClient(f"{scheme}://{host}:{http.port}", tls_ca=http.tls_cert, timeout_s=ASK_S)
    if is_running:
        return ok("http.port", f"{place}: the {service} of these settings runs and has it")
    try:
        answering = str(server.get_json("/health")["service"])
    except (DatabusError, KeyError, TypeError):
        answering = "something that is no healthy databus"
    advice = "stop it, or choose another port (http.port)"
    text = f"{place} is in use: {answering} listens there"
    if answering == service:
        return warning("http.port", f"{text}; if it is another than this one, {advice}")
    return error("http.port", f"{text}; {advice}")
