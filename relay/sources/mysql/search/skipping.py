"""Reads the chunks of a connection with a compiled skipper, which leaves some events to Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from databus.relay.sources.mysql.binlog.packets import PacketReader, event_of

try:
    from databus.relay.sources.mysql.binlog import _event_skipper
except ImportError:  # not built: every event is read in Python
    IS_COMPILED = False
else:
    IS_COMPILED = True
    EventSkipper = _event_skipper.EventSkipper
    TransactionSkipper = _event_skipper.TransactionSkipper
    MORE, PACKET, BROKEN = _event_skipper.MORE, _event_skipper.PACKET, _event_skipper.BROKEN


def events_left(
    skipper: _event_skipper.EventSkipper,
    run: Callable[[], int],
    chunks: Iterable[tuple[memoryview | bytes, int]],
) -> Iterator[bytes]:
    """Yield the events before which a skipper stops.

    `run` gives the skipper the state of the search, lets it run and takes the state back. Raises
    StreamEnded at the end of the stream, and StreamBrokenError.
    """
    for chunk, size in chunks:
        skipper.feed(chunk, size)
        while (status := run()) != MORE:
            if status == BROKEN:
                _raise_broken(skipper)
            if status == PACKET:
                event_of(skipper.next_event())
            yield skipper.next_event()


def _raise_broken(skipper: _event_skipper.EventSkipper) -> None:
    """Raise StreamBrokenError, in the words of the reader in Python."""
    for _ in PacketReader(skipper.sequence).receive(skipper.rest()):
        pass
    raise AssertionError("the reader in Python finds nothing wrong")
