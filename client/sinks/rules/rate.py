"""How fast a counter grows, over the last few seconds. Pure: times are seconds of any clock."""

from __future__ import annotations

from collections import deque

_OVER_S = 5.0
_EVERY_S = 1.0
_LEAST_S = 0.1  # over a shorter time a rate means nothing


class Rate:
    """Samples of a counter that begins with 0."""

    def __init__(self, now_s: float) -> None:
        self._samples: deque[tuple[float, int]] = deque([(now_s, 0)])

    def sample(self, total: int, now_s: float) -> None:
        """Keep a sample, if the last one is old enough; to be called often."""
        if now_s - self._samples[-1][0] < _EVERY_S:
            return
        self._samples.append((now_s, total))
        while len(self._samples) > 1 and now_s - self._samples[1][0] >= _OVER_S:
            self._samples.popleft()

    def per_s(self, total: int, now_s: float) -> float | None:
        """Return the rate; None right after the start."""
        at_s, before = self._samples[0]
        return (total - before) / (now_s - at_s) if now_s - at_s >= _LEAST_S else None
