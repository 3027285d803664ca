"""Fetch Apache Kafka and OpenSearch, whose servers the tests of sinks run.

`mvn` fetches their archives and all that these need, once, into the cache folder of the test
servers (see `fetch_test_servers`). They are checked against one checksum of all names and contents.

    python -m tools.fetch_archives

Without them, or without Java, these tests are not run: one line says so. With
DATABUS_REQUIRE_TEST_SERVERS=1 that is an error.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tools.fetch_test_servers import FetchError, cache_folder, copy_dependencies, is_required


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
            archives = copy_dependencies(self.artifacts, Path(work))
            found = _checksum(archives)
            if found != self.sha256:
                raise FetchError(f"{self.title} has the checksum {found}, and not {self.sha256}")
            # Atomic, because another process may be fetching it too.
            if not self._folder.is_dir():
                archives.rename(self._folder)

    @property
    def _folder(self) -> Path:
        return cache_folder() / "-".join(self.artifacts[0].split(":")[1:])


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
    for one in (KAFKA, OPENSEARCH):
        try:
            one.fetch()
        except (FetchError, OSError) as error:
            print(f"{one.title} could not be fetched, its tests are not run: {error}")
            status = 1 if is_required() else status
    return status


if __name__ == "__main__":
    sys.exit(main())
