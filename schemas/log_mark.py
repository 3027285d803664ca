"""The identity of a log at one SCN, stored to recognise the log later. Pure.

MaxSCN and the ring's header store such marks. The source defines the content; here it is an SCN
and a line of text. A mark is valid for its own SCN only, because the SCN beside which it is
stored may have advanced since, or may have been restored.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import NamedTuple

_MARK = re.compile(r"(\d{1,19}):(\{[ -~]*\})")


class LogMark(NamedTuple):
    """The log at an SCN; `text` is a JSON object in one line of ASCII."""

    scn: int
    text: str

    def encode(self) -> str:
        """Return the mark in its stored form."""
        return f"{self.scn}:{self.text}"

    @classmethod
    def decode(cls, kept: str) -> LogMark:
        """Parse the stored form; raises ValueError."""
        found = _MARK.fullmatch(kept)
        if found is None:
            raise ValueError(f"{kept[:80]!r} is no mark of a log")
        return cls(int(found[1]), found[2])


def window_text(scn: int, timestamp_ns: int) -> str:
    """Return a window for people: SCN and time of its commit."""
    committed = datetime.fromtimestamp(timestamp_ns // 1_000_000_000, UTC)
    return f"{scn}, committed at {committed:%Y-%m-%dT%H:%M:%S}.{timestamp_ns % 1_000_000_000:09}Z"
