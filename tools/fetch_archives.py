"""Fetch Apache Kafka, a registry of schemas and OpenSearch, which the tests of sinks run.

`mvn` fetches their archives and all that these need, once, into the cache folder of the test
servers (see `fetch_test_servers`). They are checked against one checksum of all names and contents.
The registry, Apicurio's with the API of Confluent's, is one archive that is unpacked.

    python -m tools.fetch_archives

Without them, or without Java, these tests are not run: one line says so. With
DATABUS_REQUIRE_TEST_SERVERS=1 that is an error.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tools.fetch_test_servers import (
    FetchError,
    cache_folder,
    check_sum,
    copy_dependencies,
    is_required,
    run_maven,
)


@dataclass(frozen=True, slots=True)
class Archives:
    """Artifacts, `group:artifact:version`, with all that they need; the first names the folder."""

    title: str
    artifacts: tuple[str, ...]
    sha256: str  # of the names and checksums of all files
    program: str = "java"  # that runs them

    def find(self) -> Path | None:
        """Return the folder of the archives; None when they were not fetched, or without Java."""
        is_there = shutil.which(self.program) and self._folder.is_dir()
        return self._folder if is_there else None

    def fetch(self) -> None:
        """Fetch the archives if they are not there yet; raises FetchError."""
        if not shutil.which(self.program):
            raise FetchError(f"there is no {self.program} (apt install default-jdk-headless)")
        if self._folder.is_dir():
            return
        cache_folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_folder(), prefix="fetching-") as work:
            archives = self._fetched(Path(work))
            # Atomic, because another process may be fetching it too.
            if not self._folder.is_dir():
                archives.rename(self._folder)

    def _fetched(self, work: Path) -> Path:
        archives = copy_dependencies(self.artifacts, work)
        found = _checksum(archives)
        if found != self.sha256:
            raise FetchError(f"{self.title} has the checksum {found}, and not {self.sha256}")
        return archives

    @property
    def _folder(self) -> Path:
        return cache_folder() / "-".join(self.artifacts[0].split(":")[1:3])


class PackedServer(Archives):
    """One artifact, `group:artifact:version:tar.gz:classifier`, with all that it needs in it."""

    def _fetched(self, work: Path) -> Path:
        (artifact,) = self.artifacts
        run_maven(work, "dependency:copy", f"-Dartifact={artifact}", "-DoutputDirectory=.")
        (archive,) = work.glob("*.tar.gz")
        check_sum(artifact, self.sha256, archive)
        unpacked = work / "unpacked"
        with tarfile.open(archive) as opened:
            opened.extractall(unpacked, filter="data")
        return unpacked


def _checksum(folder: Path) -> str:
    """Return the checksum of the names and checksums of all files."""
    found = hashlib.sha256()
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        found.update(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n".encode())
    return found.hexdigest()


KAFKA = Archives(
    "Apache Kafka",
    ("org.apache.kafka:kafka_2.13:3.9.1",),
    "91dfee5da8faf06be9ad302c4052ffd7a1f0a166e6c696f00eb4ab1d833471e8",
)
REGISTRY = PackedServer(
    "Apicurio Registry",
    ("io.apicurio:apicurio-registry-app:2.6.13.Final:tar.gz:all",),
    "3cda1b34aa020fb4ac4dd6a66018d757e81e437f97e20a1f92d366b70091c6ba",
)
OPENSEARCH = Archives(
    "OpenSearch",
    (
        "org.opensearch:opensearch:2.19.6",
        "org.opensearch.plugin:transport-netty4-client:2.19.6",
        "org.opensearch.plugin:reindex-client:2.19.6",  # has _delete_by_query
        "org.apache.logging.log4j:log4j-core:2.25.4",
    ),
    "0f770d6caf71340aa5fa941fd65fbeb1bf83c3cef9e041410fbe93304ed8b1a4",
    "javac",  # the tests' main class is a source file
)


def main() -> int:
    """Fetch the archives; return the exit status."""
    status = 0
    for one in (KAFKA, REGISTRY, OPENSEARCH):
        try:
            one.fetch()
        except (FetchError, OSError) as error:
            print(f"{one.title} could not be fetched, its tests are not run: {error}")
            status = 1 if is_required() else status
    return status


if __name__ == "__main__":
    sys.exit(main())
