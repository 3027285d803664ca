"""The peers, and how their programs are built: once, in a folder of the user's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

SOURCES = Path(__file__).parent / "programs"
_BUILD_TIMEOUT_S = 1800
# Without it a virtual machine takes a quarter of the machine's memory before it cleans up.
_HEAP = "-Xmx1g"


class BuildError(Exception):
    """A program cannot be built here; the text says why."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One way to read a binlog; `mode` is its program's first argument."""

    title: str
    program: str
    mode: str
    slowness: int = 1  # it gets this factor fewer rows


PEERS = {
    "go-syncer": Peer("go-mysql, syncer", "go_mysql", "syncer", 4),
    "go-canal": Peer("go-mysql, canal", "go_mysql", "canal", 4),
    "mysql-cdc": Peer("Rust mysql_cdc", "rust", "mysql_cdc"),
    "mysql-async": Peer("Rust mysql_async", "rust", "mysql_async", 4),
    "java-connector": Peer("mysql-binlog-connector-java", "java/connector", "decoded"),
    "debezium": Peer("Debezium embedded, Connect records", "java/debezium", "connect", 16),
    "debezium-json": Peer("Debezium embedded, JSON", "java/debezium", "json", 16),
    "canal": Peer("Canal embedded", "java/canal", "embedded", 8),
}
# Reads a table, not a log.
SNAPSHOT = Peer("Debezium embedded, initial snapshot", "java/debezium", "snapshot")


@cache
def command_of(program: str) -> tuple[str, ...]:
    """Build a program where necessary; return the command that runs it. Raises BuildError."""
    folder = _fresh_copy(program)
    build = {"go_mysql": _build_go, "rust": _build_rust}.get(program, _build_java)
    return tuple(build(folder))


def _fresh_copy(program: str) -> Path:
    """Copy a program's files that are not there yet; return the folder."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(caches, "databus", "peers", program)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(SOURCES / program, folder, dirs_exist_ok=True)
    return folder


def _build_go(folder: Path) -> Sequence[str]:
    _run("go", folder, "build", "-o", "reader", ".")
    return (str(folder / "reader"),)


def _build_rust(folder: Path) -> Sequence[str]:
    _run("cargo", folder, "build", "--release", "--quiet")
    return (str(folder / "target" / "release" / "rust_readers"),)


def _build_java(folder: Path) -> Sequence[str]:
    shutil.copy(SOURCES / "java" / "Clock.java", folder)
    # The libraries of one pom.xml, complete only when the folder has this name.
    lib = f"lib-{sha256((folder / 'pom.xml').read_bytes()).hexdigest()[:8]}"
    if not (folder / lib).is_dir():
        part = f"-DoutputDirectory={lib}.part"
        shutil.rmtree(folder / f"{lib}.part", ignore_errors=True)
        _run("mvn", folder, "-q", "-B", "dependency:copy-dependencies", part)
        (folder / f"{lib}.part").rename(folder / lib)
    (program,) = {path.name for path in folder.glob("*.java")} - {"Clock.java"}
    _run("javac", folder, "-nowarn", "-cp", f"{lib}/*", "-d", "classes", "Clock.java", program)
    path = f"{folder / 'classes'}:{folder / lib}/*"
    return ("java", _HEAP, "-cp", path, program.removesuffix(".java"))


def _run(program: str, folder: Path, *arguments: str) -> None:
    if shutil.which(program) is None:
        raise BuildError(f"there is no {program}")
    done = subprocess.run(
        [program, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_BUILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        lines = (done.stderr + done.stdout).strip().splitlines()[-5:]
        raise BuildError(f"{program} {arguments[0]}: {' / '.join(lines)}")


Tell = Callable[[str], None]


def buildable(names: Sequence[str], tell: Tell) -> list[str]:
    """Return the peers that can be run here; `tell` gets the reason of each other one."""
    found = []
    for name in names:
        try:
            command_of(PEERS[name].program)
        except (BuildError, OSError, subprocess.TimeoutExpired) as error:
            tell(f"{PEERS[name].title} is left out: {error}")
        else:
            found.append(name)
    return found
