"""Servers one after another: the best first, in a random order where they are as good."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from random import Random
from types import MappingProxyType

Rank = tuple[int, ...]  # the least is the best

_AS_GOOD: Rank = ()
_NO_RANKS: Mapping[str, Rank] = MappingProxyType({})


class ServerOrder:
    """The relays, or the bootstrap servers, of one connection. Not thread-safe.

    Each is picked once before one is picked again, and none twice in a row if there is another.
    """

    def __init__(self, urls: Iterable[str], rng: Random) -> None:
        self._rng = rng
        self._urls: list[str] = []
        self._picked: list[str] = []  # in this turn
        self.replace(urls)

    def replace(self, urls: Iterable[str]) -> bool:
        """Use these servers from now on; those already known keep their order.

        Returns whether one of them is new.
        """
        wanted = list(dict.fromkeys(urls))
        kept = [url for url in self._urls if url in wanted]
        new = [url for url in wanted if url not in kept]
        # So that many clients with the same settings do not all use the same server.
        self._rng.shuffle(new)
        self._urls = [*kept, *new]
        return bool(new)

    def next(
        self, preferred: str | None = None, ranks: Mapping[str, Rank] = _NO_RANKS
    ) -> str | None:
        """Return the preferred or the next server and move it to the end; None without servers.

        The next one is the best by `ranks` of those that were not picked in this turn.
        """
        if not self._urls:
            return None
        picked = self._best(ranks) if preferred is None else preferred
        self._urls.remove(picked)
        self._urls.append(picked)
        self._picked.append(picked)
        return picked

    def _best(self, ranks: Mapping[str, Rank]) -> str:
        left = [url for url in self._urls if url not in self._picked]
        if not left:
            # The last one was left for a reason, which may well last.
            self._picked = self._picked[-1:]
            left = [url for url in self._urls if url not in self._picked] or self._urls
        return min(left, key=lambda url: ranks.get(url, _AS_GOOD))

    def __contains__(self, url: object) -> bool:
        return url in self._urls

    def __iter__(self) -> Iterator[str]:
        return iter(self._urls)

    def __len__(self) -> int:
        return len(self._urls)
