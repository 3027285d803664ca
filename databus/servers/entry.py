"""The entry of a relay or a bootstrap server among the servers that are found. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Kind = Literal["relay", "bootstrap"]
KINDS: tuple[Kind, ...] = ("relay", "bootstrap")


class HeldSource(NamedTuple):
    """A physical source at a server: its sources, and the SCNs of what it holds.

    `oldest_scn` is the one after which nothing is missing, `newest_scn` that of the newest window;
    -1 = unknown, or nothing is held. `newest_at` is when that window was committed, in Unix
    seconds; 0 = unknown. `reads` is the URL of the relay that it is read from, "" = the database.
    One that `is_draining` is not to be read here.
    """

    sources: tuple[str, ...]
    oldest_scn: int = -1
    newest_scn: int = -1
    reads: str = ""
    newest_at: float = 0.0
    is_draining: bool = False


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """A server as it describes itself.

    `instance` differs between any two processes. `url` is as others reach it. `connections` are
    those open a few seconds ago. `renewed` is when the entry was last written, in Unix seconds by
    the server's clock; for people. `draining` are physical sources that are not to be read here.
    """

    instance: str
    kind: Kind
    url: str
    room: str = ""
    connections: int = 0
    physical_sources: Mapping[str, HeldSource] = field(default_factory=dict)
    renewed: float = field(default=0.0, compare=False)
    draining: tuple[str, ...] = ()

    def has_all(self, sources: tuple[str, ...]) -> bool:
        """Return whether the server has all of these sources."""
        had = {name for held in self.physical_sources.values() for name in held.sources}
        return had.issuperset(sources)

    def oldest_scn(self, sources: tuple[str, ...]) -> int:
        """Return the SCN after which nothing of the sources is missing; -1 = unknown."""
        wanted = set(sources)
        held = self.physical_sources.values()
        return max((one.oldest_scn for one in held if wanted & set(one.sources)), default=-1)

    def values(self) -> dict[str, Any]:
        """Return the entry as JSON values."""
        return {
            "instance": self.instance,
            "kind": self.kind,
            "url": self.url,
            "room": self.room,
            "connections": self.connections,
            "physicalSources": {
                name: {
                    "sources": list(held.sources),
                    "oldestScn": held.oldest_scn,
                    "newestScn": held.newest_scn,
                    "reads": held.reads,
                    "newestAt": held.newest_at,
                }
                for name, held in self.physical_sources.items()
            },
            "renewed": self.renewed,
            "draining": list(self.draining),
        }

    def encode(self) -> bytes:
        """Return the entry as JSON."""
        return json.dumps(self.values()).encode()


def decode_entry(data: bytes) -> ServerEntry:
    """Return the entry in a JSON text; raise ValueError."""
    try:
        return entry_of(json.loads(data))
    except RecursionError as error:
        raise ValueError("it is no entry") from error


def entry_of(values: Any) -> ServerEntry:
    """Return the entry with these JSON values; raise ValueError."""
    try:
        held = {
            str(name): HeldSource(
                tuple(map(str, one["sources"])),
                int(one["oldestScn"]),
                int(one["newestScn"]),
                # Servers of earlier versions do not say the rest.
                str(one.get("reads", "")),
                float(one.get("newestAt", 0.0)),
            )
            for name, one in values["physicalSources"].items()
        }
        entry = ServerEntry(
            str(values["instance"]),
            values["kind"],
            str(values["url"]),
            str(values["room"]),
            int(values["connections"]),
            held,
            float(values["renewed"]),
            tuple(map(str, values.get("draining", ()))),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is no entry: {error!r}") from error
    if entry.kind not in KINDS or not entry.url.startswith(("http://", "https://")):
        raise ValueError(f"it is no entry: kind {entry.kind!r}, URL {entry.url!r}")
    return entry
