"""Paths of a target's files, in the forms that Spark and delta-rs need.

Spark reads a path as a glob pattern, in which `[x]` is one letter, so special
characters are escaped. delta-rs returns a table's folder URL-encoded and its file
names as they are. A folder that Spark or delta-rs cannot handle is refused when
the target is opened: otherwise the table could be written but not read.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from databus.schemas.errors import SettingsError

_PATTERN = re.compile(r"[\\{}\[\]*?]")
# Characters that delta-rs rejects or changes: it decodes %20 to a space.
_NOT_IN_DELTA = re.compile(r"[\x00-\x1f\x7f\[\]\\^|]|%[0-9A-Fa-f]{2}")


def check_delta_folder(uri: str) -> None:
    """Raise SettingsError for a target in a local folder that cannot hold a Delta table."""
    path = uri.partition(":")[2]
    if not is_local(path):
        return
    folder = str(local_folder(path))
    found = _NOT_IN_DELTA.search(folder)
    if found is not None:
        raise _refused(uri, folder, repr(found.group()), "delta-rs")
    if _PATTERN.search(folder) and ":" in folder:
        raise _refused(uri, folder, f"a colon beside {_PATTERN.findall(folder)[0]!r}", "Spark")


def is_local(path: str) -> bool:
    """Return whether a Delta table's path or URL is on a local disk."""
    return urlsplit(path).scheme == "file" or "://" not in path


def local_folder(path: str) -> Path:
    """Return the folder of a local path or `file:` URL."""
    given = unquote(urlsplit(path).path) if path.startswith("file:") else path
    return Path(os.path.abspath(given))  # noqa: PTH100


def delta_files(table_uri: str, files: list[str]) -> list[str]:
    """Return the paths of a table's files for Spark, from the paths that delta-rs returns."""
    root = table_uri.removeprefix("file://")
    found = [
        f"{unquote(root)}{file.removeprefix(root)}" if file.startswith(root) else file
        for file in files
    ]
    return found if root == table_uri else [local_file(file) for file in found]


def local_file(path: str) -> str:
    """Return a local path for Spark, whatever Spark's default file system is."""
    return f"file://{os.path.abspath(path)}"  # noqa: PTH100


def as_pattern(path: str) -> str:
    """Return the glob pattern that matches exactly one path."""
    return _PATTERN.sub(r"\\\g<0>", path)


def _refused(uri: str, folder: str, what: str, who: str) -> SettingsError:
    return SettingsError(
        f"target {uri!r}: {who} cannot read a folder whose path has {what} in it ({folder!r}): "
        "choose a folder of another name"
    )
