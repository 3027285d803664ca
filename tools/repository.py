"""Lists the repository's own Python files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The directories at the root that are installed as `databus.<name>`.
MAPPED = tuple(sorted(link.name for link in (ROOT / "databus").iterdir() if link.is_symlink()))
# All packages that are installed.
PACKAGED = frozenset({"databus", "pyspark_databus", *MAPPED})
NOT_OURS = {"build", "dist", "__pycache__"}


def python_files(root: Path) -> list[Path]:
    """List the repository's own Python files, relative to `root`, sorted."""
    return sorted(path.relative_to(root) for path in _walk(root))


def installed_path(path: Path) -> Path:
    """Return where a file of the repository lies in an installed copy."""
    return Path("databus") / path if path.parts[0] in MAPPED else path


def _walk(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_symlink() or path.name.startswith(".") or path.name in NOT_OURS:
            continue
        if path.is_dir():
            yield from _walk(path)
        elif path.suffix in {".py", ".pyi"}:
            yield path
