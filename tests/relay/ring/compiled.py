"""The ring's work per event done by the compiled module, or as where that was not built."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from databus.relay.log import windows
from databus.relay.log.frames import frame_events
from databus.relay.ring import (
    _core as ring_core,
    event_selector,
    events as ring_walk,
    layout as ring_layout,
    ring,
)

WAYS = ("compiled", "python")


@contextmanager
def ring_work(way: str) -> Iterator[None]:
    """Let rings that are opened from now on work in this way."""
    is_compiled = way == "compiled"
    with ExitStack() as patches:
        for module, name, plain in (
            (ring_layout, "RingData", None),
            (frame_events, "RingData", None),
            (windows, "stamp_part", None),
            (event_selector, "Plan", None),
            (event_selector, "find_optional", None),
            (ring, "find_run", ring_walk.find_run),
        ):
            chosen = getattr(ring_core, name) if is_compiled else plain
            patches.enter_context(patch.object(module, name, chosen))
        # Tiny rings, too, let more than a few bytes be placed.
        patches.enter_context(patch.object(ring, "RESERVED_PART", 2))
        yield
