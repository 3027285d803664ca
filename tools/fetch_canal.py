"""Fetch Canal's parser, whose entries a test compares with ours.

`mvn` fetches its archives and all that they need, once, into the cache folder of the test
servers (see `fetch_test_servers`).

    python -m tools.fetch_canal

Without them, or without Java, the comparison is not run: one line says so. With
DATABUS_REQUIRE_TEST_SERVERS=1 that is an error.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from tools.fetch_test_servers import FetchError, cache_folder, copy_dependencies, is_required

ARTIFACT = "com.alibaba.otter:canal.parse:1.1.7"


def find() -> Path | None:
    """Return the folder of the archives; None when they were not fetched, or without Java."""
    folder = cache_folder() / "-".join(ARTIFACT.split(":")[1:])
    return folder if shutil.which("javac") and folder.is_dir() else None


def fetch() -> None:
    """Fetch the archives if they are not there yet; raises FetchError."""
    if find() is not None:
        return
    if not shutil.which("javac"):
        raise FetchError("there is no javac (apt install default-jdk-headless)")
    folder = cache_folder() / "-".join(ARTIFACT.split(":")[1:])
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetching-") as work:
        archives = copy_dependencies([ARTIFACT], Path(work))
        # Atomic, because another process may be fetching it too.
        if not folder.is_dir():
            archives.rename(folder)


def main() -> int:
    """Fetch the archives; return the exit status."""
    try:
        fetch()
    except (FetchError, OSError) as error:
        print(f"Canal could not be fetched, its tests are not run: {error}")
        return 1 if is_required() else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
