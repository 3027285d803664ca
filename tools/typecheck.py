"""Check every Python file of the repository with mypy, and prove that it was every one.

mypy follows neither `setup.py`'s mapping nor an editable install, so it would
take `databus.relay` for unknown or, worse, for untyped. This script lays out
under `build/typecheck/` what an installed copy looks like, out of symbolic
links, hands mypy each file there by name, and compares how many it was given
with how many it says it checked.

    python tools/typecheck.py                  # all
    python tools/typecheck.py relay tests/relay    # these folders only
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAYOUT = ROOT / "build" / "typecheck"
# The roots that setup.py maps to databus.<name>; a test compares the two lists.
MAPPED = ("schemas", "conf", "registry", "relay", "client", "bootstrap", "demo")
# All that is installed.
PACKAGED = frozenset({"databus", "pyspark_databus", *MAPPED})
NOT_OURS = {"build", "dist", "__pycache__"}
CHECKED = re.compile(r"(?:no issues found in|\(checked) (\d+) source files?")
SWITCHED_OFF = re.compile(r"^#\s*(?:mypy:.*(?:ignore-errors|disable)|type:\s*ignore)", re.MULTILINE)


def python_files(root: Path) -> list[Path]:
    """List the repository's own Python files, relative to `root`, sorted."""
    return sorted(path.relative_to(root) for path in _walk(root))


def place_in_layout(path: Path) -> Path:
    """Return where a file of the repository lies in the installed layout."""
    return Path("databus") / path if path.parts[0] in MAPPED else path


def count_checked(mypy_output: str) -> int:
    """Return the number of files that mypy's summary line says it checked; 0 without one."""
    found = CHECKED.search(mypy_output)
    return int(found[1]) if found else 0


def select(files: list[Path], folders: list[str]) -> list[Path]:
    """Keep the files at or below the folders; all when there are none."""
    wanted = [Path(folder) for folder in folders]
    unknown = [str(w) for w in wanted if not any(f == w or w in f.parents for f in files)]
    if unknown:
        sys.exit(f"typecheck: no Python file in {', '.join(unknown)}")
    return [f for f in files if not wanted or any(f == w or w in f.parents for w in wanted)]


def main(folders: list[str]) -> int:
    """Run mypy; return the exit status."""
    files = select(python_files(ROOT), folders)
    unchecked = [str(f) for f in files if SWITCHED_OFF.search((ROOT / f).read_text("utf-8"))]
    if unchecked:
        print(f"typecheck: checking is switched off for the whole of {', '.join(unchecked)}")
        return 1
    LAYOUT.mkdir(parents=True, exist_ok=True)
    with (LAYOUT.parent / "typecheck.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs would write the same cache
        _link_layout(files)
        status, output = _run_mypy(files, partial=bool(folders))
    print(_as_in_checkout(output), end="")
    if count_checked(output) != len(files):
        print(f"typecheck: mypy checked {count_checked(output)} of {len(files)} files")
        return 1
    return status


def _walk(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_symlink() or path.name.startswith(".") or path.name in NOT_OURS:
            continue
        if path.is_dir():
            yield from _walk(path)
        elif path.suffix in {".py", ".pyi"}:
            yield path


def _link_layout(files: list[Path]) -> None:
    """Make each top-level name of the layout a link to the one in the checkout."""
    (LAYOUT / "databus").mkdir(exist_ok=True)
    names = {path.parts[0] for path in files} - {"databus", *MAPPED}
    links = {LAYOUT / name: ROOT / name for name in names}
    links |= {LAYOUT / "databus" / name: ROOT / name for name in MAPPED}
    links |= {LAYOUT / "databus" / p.name: p for p in (ROOT / "databus").iterdir() if p.is_file()}
    for link, target in links.items():
        if not (link.is_symlink() and link.readlink() == target):
            link.unlink(missing_ok=True)
            link.symlink_to(target)


def _run_mypy(files: list[Path], *, partial: bool) -> tuple[int, str]:
    """Run mypy inside the layout, where no other `databus` is in sight."""
    cache = ROOT / "build" / ("mypy-cache-partial" if partial else "mypy-cache")
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    command += ["--cache-dir", str(cache), "--explicit-package-bases", "--no-pretty"]
    # A partial run is for work in progress: what other folders get wrong is not shown.
    command += ["--follow-imports=silent"] if partial else []
    command += [str(place_in_layout(path)) for path in files]
    environment = {**os.environ, "MYPYPATH": str(LAYOUT), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        command, cwd=LAYOUT, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    return done.returncode, done.stdout


def _as_in_checkout(output: str) -> str:
    """Rewrite the layout's paths to the checkout's, so that they can be clicked on."""
    return re.sub(rf"^databus/(?=(?:{'|'.join(MAPPED)})/)", "", output, flags=re.MULTILINE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
