"""Pages that are read while the ones before them are sent and consumed.

A client asks for a page when it has received the one before it, and the checkpoint at that page's
end says what it asks for. So the next page can be read meanwhile, and both processes work at the
same time. Such a page is as good as one of a request that came a little earlier: it was read at one
moment, and says how far it reaches. It is dropped after a few seconds.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from databus.bootstrap.server.pages import Page, read_page
from databus.bootstrap.server.parameters import PageRequest
from databus.bootstrap.server.reader_pool import StoreReaders, Work
from databus.bootstrap.server.source_lookup import Listed

MOST_AHEAD = 8  # pages held at a time, for all clients
AHEAD_S = 10.0


class _Ahead(NamedTuple):
    request: PageRequest
    work: Work[Page]
    begun_s: float


class PagesAhead:
    """Reads the pages that are asked for, and those expected next. For the loop's thread."""

    def __init__(
        self,
        readers: StoreReaders,
        listed: Listed,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._readers = readers
        self._listed = listed
        self._clock = clock
        self._held: deque[_Ahead] = deque()  # the oldest first

    def read(self, request: PageRequest) -> Work[Page]:
        """Return the future page of a request, which may have been begun before it came."""
        self._drop_old()
        for ahead in self._held:
            if ahead.request == request:
                self._held.remove(ahead)
                has_failed = ahead.work.done() and ahead.work.exception() is not None
                return self._begin(request) if has_failed else ahead.work
        return self._begin(request)

    def read_after(self, request: PageRequest, page: Page) -> None:
        """Begin to read the page after the one that a request is answered with, if there is one."""
        if page.is_phase_over or not page.rows:
            return
        expected = replace(request, checkpoint=page.checkpoint)
        self._held.append(_Ahead(expected, self._begin(expected), self._clock()))
        self._drop_old()

    def _begin(self, request: PageRequest) -> Work[Page]:
        return self._readers.run(lambda stores: read_page(request, stores, self._listed))

    def _drop_old(self) -> None:
        oldest_s = self._clock() - AHEAD_S
        while self._held and (len(self._held) > MOST_AHEAD or self._held[0].begun_s < oldest_s):
            self._held.popleft().work.cancel()
