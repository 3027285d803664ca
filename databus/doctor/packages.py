"""The checks of `databus doctor` on what is installed: Python, packages, compiled modules."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import (
    PackageNotFoundError,
    packages_distributions,
    requires,
    version,
)
from importlib.util import find_spec

from databus import __version__
from databus.doctor.checks import Check, error, errors, warning

DISTRIBUTION = "databus-cdc"
_SUBJECT = "packages"
_REQUIREMENT = re.compile(r"^([A-Za-z0-9_.-]+)(?:\[[^]]*\])?\s*([^;]*)(?:;(.*))?$")
_BOUND = re.compile(r"(>=|<=|==|!=|<|>|~=)\s*([0-9][0-9.]*)")
COMPILED: Mapping[str, str] = {
    "databus.relay.sources.mysql.binlog._decoder": "a MySQL source is thirty to forty times slower",
    "databus.relay.sources.mysql.binlog._event_skipper": "a first start in the past waits longer",
    "databus.relay.sources.mysql.scan._text_rows": "tables of MySQL are seeded five times slower",
    "databus.relay.ring._core": "reading the ring is slower",
    "databus.relay.log.gtids._frame_gtids": "a relay log is written several times slower",
    "databus.relay.serving.canal._plain_windows": "clients of Canal get small transactions slower",
    "databus.relay.serving.canal._row_runs": "clients of Canal get rows slower",
    "databus.relay.serving.columns._column_writer": "clients of Canal and Ptubes get rows slower",
    "databus.relay.serving.ptubes.rows._java_hashes": "clients of Ptubes get rows slower",
    "databus.relay.serving.ptubes.rows._row_columns": "clients of Ptubes get rows slower",
    "databus.schemas.event._crc": "events are checked slower",
    "databus.schemas.event._metadata_reader": "kinds of changes and rows before are read slower",
    "databus.schemas.stream._row_cutter": "clients cut events slower",
    "databus.client.arrow._column_decoder": "columns of Arrow are made slower",
    "databus.client.dispatcher._calls": "callbacks cost more",
    "databus.client.events._event_fields": "callbacks cost more",
    "databus.schemas.rows._row_decoder": "clients decode rows ten times slower",
}
"""What is slower where a module was not compiled, by its name."""


def check_packages(extras: Iterable[str] = ()) -> list[Check]:
    """Check Python, the required packages, who else owns `databus`, and the compiled modules."""
    python = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < (3, 11):  # noqa: UP036 - whoever runs it from elsewhere
        return [error(_SUBJECT, f"Python {python}: 3.11 or newer is needed")]
    problems = [_requirement_problem(line, set(extras)) for line in _requirements()]
    found = errors(_SUBJECT, problems, f"databus {__version__}, Python {python}")
    found += _namesakes()
    for module, effect in COMPILED.items():
        if find_spec(module) is None:
            found.append(
                warning(
                    _SUBJECT,
                    f"{module} was not compiled: {effect}; install a C compiler, then install "
                    f"{DISTRIBUTION} again (pip install --force-reinstall)",
                )
            )
    return found


def _namesakes() -> list[Check]:
    """Return an error for another distribution with a package `databus`, as PyPI has one.

    Both write into one folder, and uninstalling either removes files of the other.
    """
    owners = sorted({*packages_distributions().get("databus", ())} - {DISTRIBUTION})
    return [
        error(
            _SUBJECT,
            f"the distribution {name} has a package `databus`, too, and one overwrites files of "
            f"the other: pip uninstall {name}, then install {DISTRIBUTION} again",
        )
        for name in owners
    ]


def _requirements() -> list[str]:
    try:
        return requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return []  # a checkout on the path, not installed: its imports have worked


def _requirement_problem(line: str, extras: set[str]) -> str:
    match = _REQUIREMENT.match(line)
    if match is None or not _is_wanted(match[3] or "", extras):
        return ""
    name, bounds = match[1], match[2]
    try:
        found = version(name)
    except PackageNotFoundError:
        return f"{name} is not installed: pip install '{name}{bounds.strip()}'"
    if all(_holds(found, sign, bound) for sign, bound in _BOUND.findall(bounds)):
        return ""
    return f"{name} is {found}, and must be {bounds.strip()}: pip install '{name}{bounds.strip()}'"


def _is_wanted(marker: str, extras: set[str]) -> bool:
    named = re.search(r"extra\s*==\s*['\"]([^'\"]+)", marker)
    return named[1] in extras if named else True


def _holds(found: str, sign: str, bound: str) -> bool:
    a, b = _numbers(found), _numbers(bound)
    match sign:
        case ">=":
            return a >= b
        case "<":
            return a < b
        case "<=":
            return a <= b
        case ">":
            return a > b
    return True


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:4])
