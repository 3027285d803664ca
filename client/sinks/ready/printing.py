"""The sink `print`: one line of JSON per change on standard output."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from databus.client.sinks.contract import Change, Opening, Position
from databus.client.sinks.formats.plain import json_line


class PrintSink:
    """Prints; at least once."""

    def open(self, opening: Opening) -> Position | None:  # noqa: ARG002
        """Do nothing: standard output keeps no position."""
        return None

    def write(self, changes: Sequence[Change]) -> None:
        """Print the changes, with one call: lanes do not mix their lines."""
        sys.stdout.write(b"".join(map(json_line, changes)).decode())

    def flush(self) -> Position | None:
        """Flush standard output."""
        sys.stdout.flush()
        return None

    def close(self) -> None:
        """Do nothing."""
