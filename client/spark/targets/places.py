"""Where the files of a target lie, said as Spark and delta-rs each need it.

Spark takes a path for a pattern, in which `[x]` is one letter: what is special
is escaped. delta-rs says the folder of a table as in a URL, its files by their
names. A folder that one of them cannot have is refused when the target is
opened: else it would be written and never read.
"""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

from databus.schemas.errors import SettingsError

_PATTERN = re.compile(r"[\\{}\[\]*?]")
# What delta-rs fails on, or takes for something else: it decodes %20 to a space.
_NOT_IN_DELTA = re.compile(r"[\x00-\x1f\x7f\[\]\\^|]|%[0-9A-Fa-f]{2}")


def check_folder(uri: str, folder: str) -> None:
    """Raise SettingsError for a folder of this disk that Spark cannot read."""
    if _PATTERN.search(folder) and ":" in folder:
        raise _refused(uri, folder, f"a colon beside {_PATTERN.findall(folder)[0]!r}", "Spark")


def check_delta_folder(uri: str, path: str) -> None:
    """Raise SettingsError for a folder of this disk that a Delta table cannot be in."""
    if not is_local(path):
        return
    folder = _local(path)
    found = _NOT_IN_DELTA.search(folder)
    if found is not None:
        raise _refused(uri, folder, repr(found.group()), "delta-rs")
    check_folder(uri, folder)


def is_local(path: str) -> bool:
    """Say whether a Delta table's path or URL is of this disk."""
    return urlsplit(path).scheme == "file" or "://" not in path


def delta_files(table_uri: str, files: list[str]) -> list[str]:
    """Return a table's files as Spark reads them, from what delta-rs says of it."""
    root = table_uri.removeprefix("file://")
    found = [
        f"{unquote(root)}{file.removeprefix(root)}" if file.startswith(root) else file
        for file in files
    ]
    return found if root == table_uri else [local_file(file) for file in found]


def local_file(path: str) -> str:
    """Return a file of this disk as Spark reads it, whatever file system is its own."""
    return f"file://{os.path.abspath(path)}"  # noqa: PTH100


def as_pattern(path: str) -> str:
    """Return the pattern that only one path fits."""
    return _PATTERN.sub(r"\\\g<0>", path)


def _local(path: str) -> str:
    given = unquote(urlsplit(path).path) if path.startswith("file:") else path
    return os.path.abspath(given)  # noqa: PTH100


def _refused(uri: str, folder: str, what: str, who: str) -> SettingsError:
    return SettingsError(
        f"target {uri!r}: {who} cannot read a folder whose path has {what} in it ({folder!r}): "
        "give a folder of another name"
    )
