"""Fetch Ptubes' stock client, which tests let read from a relay.

`mvn` fetches `com.meituan:ptubes-sdk:1.0.0` with all that it needs. The archives are kept in the
cache folder of the test servers (see `fetch_test_servers`); that of the client itself is checked
against the checksum below.

    python -m tools.fetch_ptubes

Without it, or without a JDK, its tests are not run: one line says so. With
DATABUS_REQUIRE_TEST_SERVERS=1 that is an error.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from pathlib import Path

from tools.fetch_test_servers import FetchError, cache_folder, copy_dependencies, is_required

_ARTIFACT = "com.meituan:ptubes-sdk:1.0.0"
_SDK = "ptubes-sdk-1.0.0.jar"
_SHA256 = "ab43953b52bf1f06e451fae45983d744fc0888d2d5ab081878d6017bca1c749d"


def folder() -> Path:
    """Return the folder of the archives."""
    return cache_folder() / "ptubes-sdk-1.0.0"


def find() -> list[Path] | None:
    """Return the archives; None when they were not fetched, or when there is no JDK."""
    is_there = shutil.which("javac") and (folder() / _SDK).is_file()
    return sorted(folder().glob("*.jar")) if is_there else None


def fetch() -> None:
    """Fetch the archives if they are not there yet; raises FetchError."""
    if not shutil.which("javac"):
        raise FetchError("there is no javac (apt install default-jdk-headless)")
    if (folder() / _SDK).is_file():
        return
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix="unpacking-") as name:
        archives = copy_dependencies([_ARTIFACT], Path(name))
        with (archives / _SDK).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != _SHA256:
            raise FetchError(f"{_SDK} has the checksum {found}, and not {_SHA256}")
        # Atomic, because another process may be fetching it too.
        if not folder().exists():
            archives.rename(folder())


def main() -> int:
    """Fetch the archives; return the exit status."""
    try:
        fetch()
    except FetchError as error:
        print(f"Ptubes' client could not be fetched, its tests are not run: {error}")
        return 1 if is_required() else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
