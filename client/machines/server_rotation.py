"""Servers in a random order, so that clients spread over them, then one after another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random


class ServerOrder:
    """The relays, or the bootstrap servers, of one connection. Not thread-safe."""

    def __init__(self, urls: Iterable[str], rng: Random) -> None:
        self._rng = rng
        self._urls: list[str] = []
        self.replace(urls)

    def replace(self, urls: Iterable[str]) -> None:
        """Use these servers from now on; those already known keep their order."""
        wanted = list(dict.fromkeys(urls))
        kept = [url for url in self._urls if url in wanted]
        new = [url for url in wanted if url not in kept]
        # So that many clients with the same settings do not all use the same server.
        self._rng.shuffle(new)
        self._urls = [*kept, *new]

    def next(self, preferred: str | None = None) -> str | None:
        """Return the preferred or the next server and move it to the end; None without servers."""
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
