"""What a sink raises, by the kind of failure: each kind has a rule of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from databus.schemas.errors import DatabusError, RequestError

if TYPE_CHECKING:
    from databus.client.sinks.contract import Change


class SinkError(DatabusError):
    """A sink cannot do its work."""


class UnknownSinkError(RequestError):
    """There is no such sink in this process, or it does not read such a physical source."""

    status = 404


class SinkUnavailableError(SinkError):
    """The target cannot be reached, or is busy: the same again may help.

    `retry_after_s` is the wait that the target asks for.
    """

    def __init__(self, problem: str, retry_after_s: float | None = None) -> None:
        super().__init__(problem)
        self.retry_after_s = retry_after_s


class SinkRefusedError(SinkError):
    """The target refuses a row: the same again does not help. `change` is that row, if known."""

    def __init__(self, problem: str, change: Change | None = None) -> None:
        super().__init__(problem)
        self.change = change


class SinkCodeError(SinkError):
    """The code of an isolated sink raised an error of its own, which is named in the text."""


class SinkProcessError(SinkError):
    """The process of an isolated sink has ended, or was killed."""
