"""What a log was at one SCN, kept so that it can be known again. Pure.

MaxSCN and the ring's header keep such marks. What is in one is its source's
business: here it is an SCN and a line of text. A mark is of the SCN that it has
in it, and of no other: whatever it is stored beside may have moved on since, or
have been put back.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_MARK = re.compile(r"(\d{1,19}):(\{[ -~]*\})")


class LogMark(NamedTuple):
    """The log at an SCN; `text` is a JSON object in one line of ASCII."""

    scn: int
    text: str

    def encode(self) -> str:
        """Return it as it is kept."""
        return f"{self.scn}:{self.text}"

    @classmethod
    def decode(cls, kept: str) -> LogMark:
        """Read what `encode` wrote; raises ValueError."""
        found = _MARK.fullmatch(kept)
        if found is None:
            raise ValueError(f"{kept[:80]!r} is no mark of a log")
        return cls(int(found[1]), found[2])
