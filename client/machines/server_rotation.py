"""Servers in a random order, so that a fleet of clients spreads, and then taken in turn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random


class ServerOrder:
    """The servers of one kind. Not thread-safe."""

    def __init__(self, urls: Iterable[str], rng: Random) -> None:
        self._rng = rng
        self._urls: list[str] = []
        self.replace(urls)

    def replace(self, urls: Iterable[str]) -> None:
        """Take these from now on; those that were there keep their places."""
        wanted = list(dict.fromkeys(urls))
        kept = [url for url in self._urls if url in wanted]
        new = [url for url in wanted if url not in kept]
        self._rng.shuffle(new)
        self._urls = [*kept, *new]

    def next(self, preferred: str | None = None) -> str | None:
        """Return the preferred one or the next in turn, which goes to the end; None: no server."""
        if not self._urls:
            return None
        picked = self._urls[0] if preferred is None else preferred
        self._urls.remove(picked)
        self._urls.append(picked)
        return picked

    def __contains__(self, url: object) -> bool:
        return url in self._urls

    def __iter__(self) -> Iterator[str]:
        return iter(self._urls)

    def __len__(self) -> int:
        return len(self._urls)
