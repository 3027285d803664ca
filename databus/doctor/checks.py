"""The results of `databus doctor`: one line for each check. Pure.

A check is ok, a warning (it works, but needs attention), or an error (it
will not work). A warning or an error says what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

_MOST_SHOWN = 10


class Verdict(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Check:
    """One check, in one line."""

    verdict: Verdict
    subject: str
    text: str

    def to_json_value(self) -> dict[str, str]:
        """Return the check as plain values."""
        return {"verdict": self.verdict.value, "subject": self.subject, "text": self.text}


def ok(subject: str, text: str) -> Check:
    """Return a check that is ok."""
    return Check(Verdict.OK, subject, text)


def warning(subject: str, text: str) -> Check:
    """Return a warning: it works, but needs attention."""
    return Check(Verdict.WARNING, subject, _one_line(text))


def error(subject: str, text: str) -> Check:
    """Return an error: it will not work."""
    return Check(Verdict.ERROR, subject, _one_line(text))


def errors(subject: str, problems: Iterable[str], well: str) -> list[Check]:
    """Return an error for each problem; without any, an ok check with the text `well`."""
    found = [error(subject, problem) for problem in problems if problem]
    return found or ([ok(subject, well)] if well else [])


def check_matched(subject: str, found: Sequence[str], warnings: Iterable[str]) -> Iterator[Check]:
    """Say which tables the patterns of a source match, and what to know of the others."""
    if found:
        shown = ", ".join(found[:_MOST_SHOWN]) + (", …" if len(found) > _MOST_SHOWN else "")
        yield ok(subject, f"patterns match {len(found)} tables: {shown}")
    yield from (warning(subject, text) for text in warnings)


def has_errors(checks: Iterable[Check]) -> bool:
    """Return whether any check found an error."""
    return any(check.verdict is Verdict.ERROR for check in checks)


def verdict_line(checks: Sequence[Check]) -> str:
    """Return the last line: the number of each verdict."""
    counts = {verdict: sum(c.verdict is verdict for c in checks) for verdict in Verdict}
    return (
        f"{counts[Verdict.OK]} ok, {counts[Verdict.WARNING]} warnings, "
        f"{counts[Verdict.ERROR]} errors"
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())
