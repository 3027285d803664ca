"""The endpoints of groups, leases, servers and chains: what `ClusterWatch` has seen."""

from __future__ import annotations

from collections.abc import Sequence

from databus.daemon.http.openapi import Call, Endpoint
from databus.relay.cluster.cluster import Cluster
from databus.relay.cluster.models import (
    Chains,
    GroupsView,
    GroupView,
    LeasesQuery,
    LeasesView,
    ServersView,
)

_NO_SUCH = {404: "The coordinator has no such group, or it is not known yet"}


class ClusterApi:
    """The endpoints of one relay's cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def endpoints(self, root: str) -> Sequence[Endpoint]:
        """Return the table of endpoints below a path."""
        return (
            Endpoint(
                "GET",
                f"{root}/groups",
                "The groups of consumers that meet at the coordinator",
                GroupsView,
                self.groups,
            ),
            Endpoint(
                "GET",
                f"{root}/groups/{{name}}",
                "One group: processes, owners and lag of each partition, moves of the last day",
                GroupView,
                self.group,
                errors=_NO_SUCH,
            ),
            Endpoint(
                "GET",
                f"{root}/leases",
                "The leases of the coordinator: owner, term, and whether they are renewed",
                LeasesView,
                self.leases,
                query=LeasesQuery,
            ),
            Endpoint(
                "GET",
                f"{root}/servers",
                "The relays and bootstrap servers of the coordinator, and which reads which",
                ServersView,
                self.servers,
            ),
            Endpoint(
                "GET",
                f"{root}/chain",
                "The relays from this one up to the database, for each physical source",
                Chains,
                self.chain,
            ),
        )

    async def groups(self, _call: Call) -> GroupsView:
        """Return all groups."""
        await self._cluster.watch.asked()
        return self._cluster.groups()

    async def group(self, call: Call) -> GroupView:
        """Return one group."""
        await self._cluster.watch.asked()
        return self._cluster.group(call.path["name"])

    async def leases(self, call: Call) -> LeasesView:
        """Return the leases."""
        await self._cluster.watch.asked()
        return self._cluster.leases(dependent=call.query.dependent)

    async def servers(self, _call: Call) -> ServersView:
        """Return the servers."""
        await self._cluster.watch.asked()
        return self._cluster.servers()

    async def chain(self, call: Call) -> Chains:
        """Return the chain of each physical source."""
        await self._cluster.watch.asked()
        return self._cluster.chains(call.peer.host)
