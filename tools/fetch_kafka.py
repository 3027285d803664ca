"""Fetch Apache Kafka, whose broker the tests of the Kafka sink run.

`mvn` fetches its archives and all that they need, once, into the cache folder of the test
servers (see `fetch_test_servers`). They are checked against one checksum below, of all names
and contents.

    python -m tools.fetch_kafka

Without them, or without Java, these tests are not run: one line says so. With
DATABUS_REQUIRE_TEST_SERVERS=1 that is an error.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from pathlib import Path

from tools.fetch_test_servers import FetchError, cache_folder, copy_dependencies, is_required

_ARTIFACT = "org.apache.kafka:kafka_2.13:3.9.1"
_SHA256 = "91dfee5da8faf06be9ad302c4052ffd7a1f0a166e6c696f00eb4ab1d833471e8"


def find() -> Path | None:
    """Return the folder of the archives; None when they were not fetched, or without Java."""
    return _folder() if shutil.which("java") and _folder().is_dir() else None


def fetch() -> None:
    """Fetch the archives if they are not there yet; raises FetchError."""
    if not shutil.which("java"):
        raise FetchError("there is no java (apt install default-jdk-headless)")
    if _folder().is_dir():
        return
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix="fetching-") as work:
        archives = copy_dependencies(_ARTIFACT, Path(work))
        found = _checksum(archives)
        if found != _SHA256:
            raise FetchError(f"{_ARTIFACT} has the checksum {found}, and not {_SHA256}")
        # Atomic, because another process may be fetching it too.
        if not _folder().is_dir():
            archives.rename(_folder())


def _folder() -> Path:
    return cache_folder() / "-".join(_ARTIFACT.split(":")[1:])


def _checksum(folder: Path) -> str:
    """Return the checksum of the names and checksums of all files."""
    found = hashlib.sha256()
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        found.update(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n".encode())
    return found.hexdigest()


def main() -> int:
    """Fetch the archives; return the exit status."""
    try:
        fetch()
    except (FetchError, OSError) as error:
        print(f"Apache Kafka could not be fetched, its tests are not run: {error}")
        return 1 if is_required() else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
