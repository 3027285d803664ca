"""The relays above a relay: the one that it reads from, the one that this one reads from … Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from databus.relay.cluster.models import ChainLink, Chains

MOST_LINKS = 16


class Above(NamedTuple):
    """The links above a relay, the next one first; `problem`: why the relay at `url` is silent."""

    links: tuple[ChainLink, ...]
    url: str
    problem: str = ""


def read_above(value: Any, name: str, url: str) -> Above:
    """Return what the relay at `url` says of a physical source's chain; raises ValueError."""
    for chain in Chains.model_validate(value).chains:
        if chain.physical_source == name and chain.links:
            first, *rest = chain.links
            return Above((first.model_copy(update={"url": url}), *rest), url)
    raise ValueError(f"it has no physical source {name}")


def chain_of(own: ChainLink, above: Above | None) -> tuple[list[ChainLink], str]:
    """Return the links from a relay upward, and which loop they are in; "" = none.

    Each link is there once, and there are `MOST_LINKS` at most.
    """
    links, seen = [own], {own.instance: own}
    for link in () if above is None else above.links:
        if link.instance in seen:
            return links, _loop_text(links, link)
        if len(links) == MOST_LINKS:
            break
        links.append(link)
        seen[link.instance] = link
    if above is not None and above.problem:
        links.append(ChainLink.silent(above.url, above.problem))
    return links, ""


def _loop_text(links: Sequence[ChainLink], again: ChainLink) -> str:
    names = [one.url or one.name for one in links]
    first = next(number for number, one in enumerate(links) if one.instance == again.instance)
    way = ", which reads ".join([*names[first + 1 :], names[first]])
    return f"{names[first]} reads {way}: give one of them another `uri`"


def depth_of(links: Sequence[ChainLink], loop: str) -> int | None:
    """Return how many relays are above the first one; None if the database's was not found."""
    last = links[-1]
    is_whole = not loop and not last.problem and not last.reads
    return len(links) - 1 if is_whole else None
