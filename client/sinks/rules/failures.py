"""What follows a failure of a sink: the same again, then stop, skip or dead letter. Pure.

First `fast_retries` at once, then with back-off, in all `retries` times or for ever. Each kind of
failure has a rule: a target that cannot be reached is waited for, a row that it refuses is not. A
mistake of the settings stops the sink at once, until a person has mended it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple, Protocol

from databus.client.sinks.errors import SinkRefusedError, SinkUnavailableError
from databus.daemon.faults import is_transient
from databus.schemas.errors import SettingsError


class FailureKind(StrEnum):
    """The kinds of failures."""

    UNAVAILABLE = "unavailable"  # the target cannot be reached
    REFUSED = "refused"  # it refuses a row
    OTHER = "other"  # anything else, such as a defect of the sink


class Then(StrEnum):
    """What follows when retries have not helped."""

    STOP = "stop"
    SKIP = "skip"
    DEAD_LETTER = "dead-letter"


class FailureRule(NamedTuple):
    """The rule for one kind; `retries` is None for ever."""

    retries: int | None
    then: Then


class Verdict(NamedTuple):
    """Try again after `wait_s` seconds, or, if that is None, do what `then` says."""

    wait_s: float | None
    then: Then = Then.STOP


class Waits(Protocol):
    """Growing waits, as `BackOff` has them."""

    def next_s(self) -> float:
        """Return the next wait in seconds."""
        ...

    def reset(self) -> None:
        """Begin with the first wait again."""


class Failures:
    """The failures of one piece of work, until it succeeds or is given up."""

    def __init__(
        self, rules: Mapping[FailureKind, FailureRule], fast_retries: int, waits: Waits
    ) -> None:
        self.attempts = 0  # that have failed
        self._rules, self._fast, self._waits = rules, fast_retries, waits

    def failed(self, error: BaseException) -> Verdict:
        """Return what follows an error."""
        self.attempts += 1
        if isinstance(error, SettingsError):
            return Verdict(None)  # the same again, and the next row, would meet it, too
        rule = self._rules[kind_of(error)]
        if rule.retries is not None and self.attempts > rule.retries:
            return Verdict(None, rule.then)
        asked_s = error.retry_after_s if isinstance(error, SinkUnavailableError) else None
        if self.attempts <= self._fast:
            return Verdict(asked_s or 0.0)
        # A target that says when to come again is not asked before.
        return Verdict(max(self._waits.next_s(), asked_s or 0.0))

    def reset(self) -> None:
        """Begin anew, with another piece of work."""
        self.attempts = 0
        self._waits.reset()


def is_of_a_row(error: BaseException | None) -> bool:
    """Return whether another row may be written where this error came."""
    if error is None or isinstance(error, SettingsError):
        return False
    return kind_of(error) is not FailureKind.UNAVAILABLE


def kind_of(error: BaseException) -> FailureKind:
    """Return the kind of an error."""
    if isinstance(error, SinkUnavailableError) or is_transient(error):
        return FailureKind.UNAVAILABLE
    if isinstance(error, SinkRefusedError):
        return FailureKind.REFUSED
    return FailureKind.OTHER
