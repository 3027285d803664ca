"""Fetch and build Canal's stock clients, which the tests of its front door run.

Java's from the Maven repository (`mvn`), Go's from the Go module proxy, Python's from PyPI into an
environment of its own, because it needs an old protobuf. They are built with the programs in
benchmarks/canal_clients, and kept in the cache folder of the test servers (see
`fetch_test_servers`) until a program changes.

    python -m tools.fetch_canal_clients

Where one cannot be fetched, a line says why, and its tests are not run. With
DATABUS_REQUIRE_TEST_SERVERS=1 that is an error.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from tools.fetch_test_servers import FetchError, cache_folder, is_required

PROGRAMS = Path(__file__).resolve().parent.parent / "benchmarks" / "canal_clients"
PYTHON_PACKAGES = ("canal-python==0.4", "protobuf==3.20.3")
_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class StockClient:
    """A stock client: its program, how it is built, and the command that runs it."""

    name: str
    title: str
    sources: str  # pattern of the files of its program
    build: Callable[[Path], None]  # in a folder with the programs
    command: Callable[[Path], list[str]]

    @property
    def folder(self) -> Path:
        """The folder of these very programs."""
        digest = sha256()
        for path in self.files():
            digest.update(path.read_bytes())
        return cache_folder() / f"canal-{self.name}-{digest.hexdigest()[:8]}"

    def files(self) -> list[Path]:
        """Return the files of its program."""
        return sorted(PROGRAMS.glob(self.sources))

    def find(self) -> list[str] | None:
        """Return the command that runs it; None when it was not built."""
        return self.command(self.folder) if self.folder.is_dir() else None


def _build_java(folder: Path) -> None:
    copied = ("-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib")
    _run("mvn", folder, *copied)
    _run("javac", folder, "-nowarn", "-cp", "lib/*", "-d", ".", "Reader.java")


def _java(folder: Path) -> list[str]:
    quick = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    return ["java", *quick, "-cp", f"{folder}:{folder}/lib/*", "Reader"]


def _build_go(folder: Path) -> None:
    _run("go", folder, "build", "-o", "reader", ".")


def _build_python(folder: Path) -> None:
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    pip = ("-m", "pip", "--python", str(python), "install", "--quiet")
    _run(sys.executable, folder, *pip, "--disable-pip-version-check", *PYTHON_PACKAGES)


JAVA = StockClient("java", "canal.client 1.1.8", "programs/java/*", _build_java, _java)
GO = StockClient(
    "go", "canal-go 1.1.2", "programs/go/*", _build_go, lambda folder: [str(folder / "reader")]
)
PYTHON = StockClient(
    "python",
    "canal-python 0.4",
    "python_reader.py",
    _build_python,
    lambda folder: [str(folder / "venv" / "bin" / "python"), str(folder / "python_reader.py")],
)
CLIENTS = (JAVA, GO, PYTHON)


def fetch(client: StockClient) -> None:
    """Fetch and build a client, unless it is there; raises FetchError."""
    if client.folder.is_dir():
        return
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix="building-") as made:
        built = Path(made) / client.name
        built.mkdir()
        for path in client.files():
            shutil.copy(path, built)
        client.build(built)
        # Atomic, because another process may be building it, too.
        if not client.folder.is_dir():
            built.rename(client.folder)


def _run(program: str, folder: Path, *arguments: str) -> None:
    if shutil.which(program) is None:
        raise FetchError(f"there is no {program}")
    try:
        done = subprocess.run(
            [program, *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"{program} was not done after {_TIMEOUT_S} s") from error
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines()[-3:]
        raise FetchError(f"{program} says: {' / '.join(lines)[:300]}")


def main() -> int:
    """Fetch every client; return the exit status."""
    failures = 0
    for client in CLIENTS:
        try:
            fetch(client)
        except FetchError as error:
            failures += 1
            print(f"{client.title} could not be fetched, its tests are not run: {error}")
    return 1 if failures and is_required() else 0


if __name__ == "__main__":
    sys.exit(main())
