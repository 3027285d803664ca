"""A proxy in front of a server that cuts the stream of its log where a test says."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.adversity.proxy import Tamper, WireProxy


class CuttingProxy(WireProxy):
    """Passes everything on, but of each dump only as many packets as `next_cut` says.

    With `cuts_inside`, half of the next one passes too. `next_cut` is called on
    the proxy's threads; None lets all of it pass.
    """

    def __init__(self, server_port: int) -> None:
        super().__init__(server_port)
        self.next_cut: Callable[[], int | None] = lambda: None
        self.cuts_inside = False
        self.was_cut = False

    def _tamper_of_dump(self) -> Tamper | None:
        left = self.next_cut()
        return None if left is None else self._cut_after(left)

    def _cut_after(self, left: int) -> Tamper:
        def tamper(packet: bytes) -> Iterator[bytes]:
            nonlocal left
            if left:
                left -= 1
                yield packet
                return
            self.was_cut = True
            if self.cuts_inside:
                yield packet[: len(packet) // 2]
            raise ConnectionAbortedError("cut here")

        return tamper
