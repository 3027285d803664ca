"""Runs a module in a Python whose compiled modules are built with AddressSanitizer.

They are built from a copy of the sources, so that those in use stay as they
are, and loaded under their own names before anything imports them. Python
itself takes each of its objects from `malloc`, so that a byte read behind one
is seen. What Python's code says of the same bytes is left to a run without it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import click

from tools.repository import ROOT

_FLAGS = "-fsanitize=address -fno-omit-frame-pointer -g -O1"
ROOTS = ("schemas", "relay", "client")  # packages that have compiled modules
_COPIED = ("*.py", "*.pyx", "*.pxi", "*.pxd", "*.pyi", "*.avsc", "*.toml", "README.md", "LICENSE")
_LEFT_OUT = {"build", "tests", "benchmarks", "docs", "examples", "tools", "__pycache__"}


def run_sanitized(module: str, arguments: Sequence[str], roots: Sequence[str] = ROOTS) -> int:
    """Build the modules of these packages, run a module's `main` with them; return its status.

    It is run with `--only-compiled` beside the arguments.
    """
    with tempfile.TemporaryDirectory(prefix="databus-sanitized-") as folder:
        place = Path(folder) / "source"
        built = build(place, roots)
        click.echo(f"built with AddressSanitizer: {', '.join(module_name(b) for b in built)}")
        command = [sys.executable, "-m", __name__, str(place), module, *arguments]
        return subprocess.run(command, env=_environment(), cwd=ROOT, check=False).returncode


def build(target: Path, roots: Sequence[str] = ROOTS) -> list[Path]:
    """Build the compiled modules of these packages in a copy of the sources; return them."""
    _copy_sources(target, roots)
    environment = {**os.environ, "CFLAGS": _FLAGS, "LDFLAGS": "-fsanitize=address"}
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"],
        cwd=target,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    built = _modules_in(target)
    wanted = {path.stem for path in target.rglob("*.pyx")}
    if {path.name.partition(".")[0] for path in built} != wanted:
        raise click.ClickException(f"not all of {wanted} could be built: {done.stderr[-2000:]}")
    return built


def _copy_sources(target: Path, roots: Sequence[str]) -> None:
    for pattern in _COPIED:
        for path in ROOT.rglob(pattern):
            place = path.relative_to(ROOT)
            if pattern == "*.pyx" and place.parts[0] not in roots:
                continue
            if not _LEFT_OUT & set(place.parts) and not place.parts[0].startswith("."):
                (target / place).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target / place)


def _modules_in(folder: Path) -> list[Path]:
    """Return the built modules beside their sources; `build` has what they were made of."""
    return sorted(p for p in folder.rglob("*.so") if "build" not in p.relative_to(folder).parts)


def module_name(built: Path) -> str:
    """Return the name under which a built module is imported."""
    folders = []
    for parent in built.parents:
        if (parent / "setup.py").exists():
            break
        folders.append(parent.name)
    return ".".join(["databus", *reversed(folders), built.name.partition(".")[0]])


def _environment() -> dict[str, str]:
    library = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    return {
        **os.environ,
        "LD_PRELOAD": library.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=99",
        "PYTHONMALLOC": "malloc",
    }


class _BuiltModules(importlib.abc.MetaPathFinder):
    """Finds built modules under their own names, before those beside the sources."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._paths = paths

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return how a built module is loaded; None for all others."""
        built = self._paths.get(name)
        return None if built is None else importlib.util.spec_from_file_location(name, built)


def load_built(folder: Path) -> None:
    """Load every built module under its own name, in place of those beside the sources."""
    paths = {module_name(path): path for path in _modules_in(folder)}
    for name in paths:
        if name in sys.modules:
            raise ImportError(f"{name} was imported already")
    # One may import another.
    sys.meta_path.insert(0, _BuiltModules(paths))
    for name in paths:
        importlib.import_module(name)


def main(arguments: Sequence[str]) -> None:
    """Run as the child."""
    built, module, *told = arguments
    load_built(Path(built))
    importlib.import_module(module).main([*told, "--only-compiled"])


if __name__ == "__main__":
    main(sys.argv[1:])
