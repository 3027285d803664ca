"""Makes the wheel and the sdist, and installs one of them as somebody who has nothing yet."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tools.repository import ROOT

NOT_COPIED = (".*", "build", "dist", "site", "*.egg-info", "__pycache__", "*.so", "*.c")
# Nothing of the machine's user: no settings of pip, no cache, no other packages.
BARE = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
WAYS = ("wheel", "sdist", "sdist without a compiler")


def make_distributions(folder: Path) -> dict[str, Path]:
    """Build both from a copy of the checkout; return the file of each."""
    source = folder / "source"
    ignored = shutil.ignore_patterns(*NOT_COPIED)
    shutil.copytree(ROOT, source, symlinks=True, ignore=ignored)
    run([sys.executable, "-m", "build", "--outdir", str(folder), str(source)], folder)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


def install(way: str, files: Mapping[str, Path], home: Path) -> Path:
    """Make an environment in an empty home, and install into it; return its `databus`."""
    home.mkdir()
    environment = BARE | {"HOME": str(home)}
    if "without" in way:
        environment["CC"] = "/nowhere/cc"
    venv = home / "venv"
    run([sys.executable, "-m", "venv", str(venv)], home, environment)
    file = files[way.partition(" ")[0]]
    run([str(venv / "bin" / "pip"), "install", "--quiet", str(file)], home, environment)
    return venv / "bin" / "databus"


def is_compiled(databus: Path) -> bool:
    """Return whether an installed copy has the compiled modules."""
    packages = databus.parent.parent.glob("lib/python*/site-packages/databus")
    return any(one for package in packages for one in package.rglob("*.so"))


def run(command: list[str], folder: Path, environment: Mapping[str, str] | None = None) -> None:
    """Run a command; raises CalledProcessError after printing what it said."""
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        done.check_returncode()
