"""A relay's view of its cluster, from what its `ClusterWatch` has seen. On the loop's thread."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import cached_property

from databus.conf.settings import PhysicalSourceSettings
from databus.leases.errors import UnknownGroupError
from databus.relay.capture.status import State
from databus.relay.cluster.chain import chain_of, depth_of
from databus.relay.cluster.coordinator import Seen, SeenGroup, SeenServer
from databus.relay.cluster.groups import (
    Newest,
    group_view,
    lease_view,
    partition_lease_view,
    summary_of,
)
from databus.relay.cluster.models import (
    ChainLink,
    Chains,
    ChainView,
    CoordinatorView,
    GroupsView,
    GroupView,
    LeasesView,
    ServedSourceView,
    ServersView,
    ServerView,
)
from databus.relay.cluster.tree import places
from databus.relay.cluster.watch import ClusterWatch, upstreams_of
from databus.relay.listing import read_from
from databus.relay.relay import Relay
from databus.servers.directory import EVERY_S

MOST_LEASES_SHOWN = 5_000


class Cluster:
    """Groups, leases and servers beside a relay, and the relays above it."""

    def __init__(self, relay: Relay) -> None:
        """Open nothing yet."""
        self._relay = relay
        self._instance = secrets.token_hex(8)

    @cached_property
    def watch(self) -> ClusterWatch:
        """What looks at it. Raises SettingsError."""
        return ClusterWatch(self._relay.settings.coordinator, upstreams_of(self._read))

    def _read(self) -> Mapping[str, PhysicalSourceSettings]:
        sources = self._relay.physical_sources
        return {name: source.capture.servers.settings for name, source in sources.items()}

    @property
    def seen(self) -> Seen:
        """What was seen last."""
        return self.watch.seen

    def coordinator(self) -> CoordinatorView | None:
        """Return the state of the coordinator; None without one."""
        found = self.watch.coordinator
        if found is None:
            return None
        return CoordinatorView(
            url=found.shown, seen_at=self.watch.seen.at, problem=self.watch.problem
        )

    def groups(self) -> GroupsView:
        """Return all groups."""
        seen, now_s = self.seen, self._now_s()
        return GroupsView(
            coordinator=self.coordinator(),
            groups=[summary_of(one, seen.leases, self._newest(one), now_s) for one in seen.groups],
            left_out=seen.groups_left_out,
        )

    def group(self, name: str) -> GroupView:
        """Return one group; raise UnknownGroupError."""
        coordinator, seen = self.coordinator(), self.seen
        for one in seen.groups:
            if one.name == name and coordinator is not None:
                return group_view(one, seen, self._newest(one), self._now_s(), coordinator)
        why = "" if coordinator is None else coordinator.problem
        raise UnknownGroupError(name, [one.name for one in seen.groups], why)

    def leases(self, *, dependent: bool) -> LeasesView:
        """Return the leases, those of partitions too if they are wanted."""
        seen = self.seen
        found = [lease_view(one) for _, one in sorted(seen.leases.items())]
        if dependent:
            found += [
                partition_lease_view(group.name, state, seen.leases)
                for group in seen.groups
                for state in group.partitions or ()
            ]
        left_out = seen.leases_left_out + max(0, len(found) - MOST_LEASES_SHOWN)
        return LeasesView(
            coordinator=self.coordinator(), leases=found[:MOST_LEASES_SHOWN], left_out=left_out
        )

    def servers(self) -> ServersView:
        """Return the servers that the coordinator lists."""
        found = self.seen.servers
        names = dict.fromkeys(n for one in found for n in one.entry.physical_sources)
        placed = {name: places(found, name) for name in names}
        newest = {name: _newest_of(found, name) for name in names}
        return ServersView(
            coordinator=self.coordinator(),
            servers=[
                ServerView(
                    instance=one.entry.instance,
                    kind=one.entry.kind,
                    url=one.entry.url,
                    room=one.entry.room,
                    connections=one.entry.connections,
                    state="gone" if one.is_gone else "alive" if one.is_renewed else "unknown",
                    renewed_at=one.entry.renewed,
                    seen_at=one.seen_at,
                    sources=[
                        *(
                            ServedSourceView(
                                name=name,
                                sources=list(held.sources),
                                oldest_scn=_scn(held.oldest_scn),
                                newest_scn=_scn(held.newest_scn),
                                newest_at=held.newest_at or None,
                                behind_s=_behind_s(held.newest_scn, held.newest_at, newest[name]),
                                reads=held.reads,
                                is_draining=False,
                                **placed[name][one.entry.instance]._asdict(),
                            )
                            for name, held in sorted(one.entry.physical_sources.items())
                        ),
                        *map(_draining, one.entry.draining),
                    ],
                )
                for one in found
            ],
        )

    def chains(self, host: str) -> Chains:
        """Return the chain of each physical source; this relay was asked as `host`."""
        found = []
        for name in self._relay.physical_sources:
            own = self._own_link(name, host)
            above = self.watch.above.get(name) if own.reads else None
            links, loop = chain_of(own, above)
            found.append(
                ChainView(physical_source=name, depth=depth_of(links, loop), links=links, loop=loop)
            )
        return Chains(chains=found)

    def _own_link(self, name: str, host: str) -> ChainLink:
        relay, source = self._relay, self._relay.physical_sources[name]
        status, settings = relay.status_of(name), relay.settings
        ring = status.ring
        return ChainLink(
            instance=self._instance,
            name=settings.public_url or host,
            url="",
            room=settings.room,
            reads=read_from(source),
            state=status.capture.state.value,
            is_connected=status.capture.is_connected,
            newest_scn=_scn(ring.max_scn),
            newest_at=ring.newest_ns / 1e9 if ring.newest_ns > 0 else None,
            behind_s=status.log.behind_s,
            is_draining=status.is_draining,
            problem="",
        )

    def _newest(self, group: SeenGroup) -> Newest | None:
        """Return the newest window of a group's sources: this relay's, or that of another one."""
        if group.record is None:
            return None
        wanted = set(group.record.facts.sources)
        for name, source in self._relay.physical_sources.items():
            if wanted <= set(source.settings.source_names):
                status = self._relay.status_of(name)
                capture = status.capture
                is_newest = capture.state is State.RUNNING and capture.is_connected
                if status.ring.max_scn < 0:
                    break
                return Newest(status.ring.max_scn, status.ring.newest_ns / 1e9, is_newest)
        held = [
            one
            for server in self.seen.servers
            if server.entry.kind == "relay" and server.is_renewed and not self.watch.problem
            for one in server.entry.physical_sources.values()
            if wanted <= set(one.sources) and one.newest_scn >= 0
        ]
        best = max(held, key=lambda one: one.newest_scn, default=None)
        return None if best is None else Newest(best.newest_scn, best.newest_at, True)

    def _now_s(self) -> float:
        return self._relay.clock.wall_ns() / 1e9


def _newest_of(servers: tuple[SeenServer, ...], name: str) -> tuple[int, float]:
    held = [one.entry.physical_sources.get(name) for one in servers]
    return max(((one.newest_scn, one.newest_at) for one in held if one), default=(-1, 0.0))


def _behind_s(scn: int, at: float, newest: tuple[int, float]) -> float | None:
    if scn < 0 or newest[0] < 0:
        return None
    if scn >= newest[0]:
        return 0.0
    if at <= 0 or newest[1] <= 0:
        return None
    # Two entries are written at two times: a smaller difference says nothing.
    late_s = newest[1] - at
    return late_s if late_s > 2 * EVERY_S else 0.0


def _draining(name: str) -> ServedSourceView:
    return ServedSourceView(
        name=name,
        sources=[],
        oldest_scn=None,
        newest_scn=None,
        newest_at=None,
        behind_s=None,
        reads="",
        parent=None,
        depth=None,
        is_in_loop=False,
        is_draining=True,
    )


def _scn(scn: int) -> int | None:
    return scn if scn >= 0 else None
