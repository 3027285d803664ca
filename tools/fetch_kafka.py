"""Fetch Apache Kafka and a registry of schemas, which the tests of the Kafka sink run.

`mvn` fetches the archives of Kafka and all that they need, once, into the cache folder of the test
servers (see `fetch_test_servers`). They are checked against one checksum below, of all names
and contents. The registry is Apicurio's, which has the API of Confluent's.

    python -m tools.fetch_kafka

Without them, or without Java, these tests are not run: one line says so. With
DATABUS_REQUIRE_TEST_SERVERS=1 that is an error.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from tools.fetch_test_servers import (
    FetchError,
    cache_folder,
    check_sum,
    copy_dependencies,
    is_required,
    run_maven,
)

_ARTIFACT = "org.apache.kafka:kafka_2.13:3.9.1"
_SHA256 = "91dfee5da8faf06be9ad302c4052ffd7a1f0a166e6c696f00eb4ab1d833471e8"
_REGISTRY = "io.apicurio:apicurio-registry-app:2.6.13.Final:tar.gz:all"
_REGISTRY_SHA256 = "3cda1b34aa020fb4ac4dd6a66018d757e81e437f97e20a1f92d366b70091c6ba"


def find() -> Path | None:
    """Return the folder of Kafka's archives; None when not all was fetched, or without Java."""
    is_there = _folder().is_dir() and _registry_folder().is_dir()
    return _folder() if shutil.which("java") and is_there else None


def find_registry() -> Path | None:
    """Return the archive that starts the registry; None when it was not fetched."""
    return next(_registry_folder().glob("*-runner.jar"), None)


def fetch() -> None:
    """Fetch the archives if they are not there yet; raises FetchError."""
    if not shutil.which("java"):
        raise FetchError("there is no java (apt install default-jdk-headless)")
    cache_folder().mkdir(parents=True, exist_ok=True)
    if not _folder().is_dir():
        _fetch_kafka()
    if not _registry_folder().is_dir():
        _fetch_registry()


def _fetch_kafka() -> None:
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix="fetching-") as work:
        archives = copy_dependencies(_ARTIFACT, Path(work))
        found = _checksum(archives)
        if found != _SHA256:
            raise FetchError(f"{_ARTIFACT} has the checksum {found}, and not {_SHA256}")
        # Atomic, because another process may be fetching it too.
        if not _folder().is_dir():
            archives.rename(_folder())


def _fetch_registry() -> None:
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix="fetching-") as work:
        run_maven(Path(work), "dependency:copy", f"-Dartifact={_REGISTRY}", "-DoutputDirectory=.")
        (archive,) = Path(work).glob("*.tar.gz")
        check_sum(_REGISTRY, _REGISTRY_SHA256, archive)
        unpacked = Path(work) / "unpacked"
        with tarfile.open(archive) as opened:
            opened.extractall(unpacked, filter="data")
        if not _registry_folder().is_dir():
            unpacked.rename(_registry_folder())


def _registry_folder() -> Path:
    return cache_folder() / "-".join(_REGISTRY.split(":")[1:3])


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
        print(f"Apache Kafka or a registry could not be fetched, their tests are not run: {error}")
        return 1 if is_required() else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
