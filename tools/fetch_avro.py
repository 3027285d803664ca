"""Fetch Avro 1.4.0 for Java, whose answers a test compares with ours.

LinkedIn's Databus clients are built with it. Its archives are fetched once, as the test
servers are (see `fetch_test_servers`), checked against the checksums below and kept in the
same cache folder.

    python -m tools.fetch_avro

Without them, or without Java 11 or later, the kept answers are tested and the archives are
not: one line says so. With DATABUS_REQUIRE_TEST_SERVERS=1 that is an error.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from tools.fetch_test_servers import FetchError, cache_folder, download, is_required

_JACKSON = "org.codehaus.jackson:jackson"
_ARCHIVES = {
    "org.apache.avro:avro:1.4.0": (
        "b641f4c8848b3b7d5e7aa3aa9a5248237a73483c2d0982ecc57534043e60ccd6"
    ),
    f"{_JACKSON}-core-asl:1.4.2": (
        "8219476b124735e163fe214a953c927ff7b6dcb542bd078e1724991ded3ec997"
    ),
    f"{_JACKSON}-mapper-asl:1.4.2": (
        "94c7918b0bb9eca12abb08613fb07cadefa8917cf1fa99040211193ffcc7a099"
    ),
}


def find() -> list[Path] | None:
    """Return the archives; None when one was not fetched, or when there is no Java."""
    found = [_path(artifact) for artifact in _ARCHIVES]
    return found if shutil.which("java") and all(path.is_file() for path in found) else None


def fetch() -> None:
    """Fetch the archives that are not there yet; raises FetchError."""
    for artifact, sha256 in _ARCHIVES.items():
        path = _path(artifact)
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                download(artifact, sha256, Path(folder)).replace(path)
    if not shutil.which("java"):
        raise FetchError("there is no java (apt install default-jdk-headless)")


def _path(artifact: str) -> Path:
    _, name, version = artifact.split(":")
    return cache_folder() / "avro-1.4.0" / f"{name}-{version}.jar"


def main() -> int:
    """Fetch the archives; return the exit status."""
    try:
        fetch()
    except FetchError as error:
        print(f"Avro 1.4.0 could not be fetched, its tests are not run: {error}")
        return 1 if is_required() else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
