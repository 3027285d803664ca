"""What a relay has served, as counters."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Traffic:
    """Counts what is served since the start; on the loop's thread only."""

    def __init__(self) -> None:
        self.started_at_s = time.time()
        self.stream_requests = 0
        self.stream_bytes = 0
        self.scn_not_found = 0
        self.held_requests = 0  # now

    def asked(self) -> None:
        """Count a valid request for a stream."""
        self.stream_requests += 1

    def served(self, size_bytes: int) -> None:
        """Count bytes of events."""
        self.stream_bytes += size_bytes

    def not_found(self) -> None:
        """Count a request for what is no longer held."""
        self.scn_not_found += 1

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Count a request as held, as long as it is."""
        self.held_requests += 1
        try:
            yield
        finally:
            self.held_requests -= 1
