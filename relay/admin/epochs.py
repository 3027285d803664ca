"""The table of epochs of a physical source, as its other relays ask for it."""

from __future__ import annotations

from pydantic import Field

from databus.conf.addresses import without_password
from databus.daemon.http.openapi import ApiModel, Scn
from databus.relay.capture.capture_ring import stored_marks
from databus.relay.physical_source import PhysicalSource


class EpochView(ApiModel):
    """One epoch: its server, and where it begins."""

    number: int
    server: str = Field(description="`server_uuid`; MariaDB: `server_id`")
    uri: str = Field(description="Without a password")
    first_scn: Scn = Field(description="Of its first window here")
    after_scn: Scn | None = Field(description="Of the last window before it here; None = none")
    file: str
    offset: int
    executed: str | None = Field(description="GTIDs of all that was delivered before it")
    began_at: int


class ClaimView(ApiModel):
    """An epoch that is to begin, and for which the other relays are asked."""

    number: int
    server: str
    uri: str
    is_confirmed: bool = Field(description="All of them were asked, and none was against it")


class Epochs(ApiModel):
    """The epochs of a physical source, the oldest first."""

    physical_source: str
    relay_id: str = Field(description="Changes with each start; empty without `epoch_peers`")
    epochs: list[EpochView]
    claim: ClaimView | None
    log_mark: str | None = Field(description="Newest identity of the log that is read")
    agreed_with: list[str] = Field(description="Those of `epoch_peers` that have agreed")


def epochs_view(source: PhysicalSource) -> Epochs:
    """Return the epochs of a physical source, and the one that is to begin."""
    servers = source.capture.servers
    table, claim = servers.table, None if servers.peers is None else servers.peers.claim
    marks = stored_marks(source.ring, source.max_scn.mark())
    return Epochs(
        physical_source=source.name,
        relay_id="" if servers.peers is None else servers.peers.relay_id,
        epochs=[
            EpochView(
                number=epoch.number,
                server=epoch.server,
                uri=without_password(epoch.uri),
                first_scn=epoch.first_scn,
                after_scn=None if epoch.after_scn < 0 else epoch.after_scn,
                file=epoch.file,
                offset=epoch.offset,
                executed=epoch.executed,
                began_at=epoch.began_s,
            )
            for epoch in table.epochs
        ],
        claim=None if claim is None else ClaimView.model_validate(claim._asdict()),
        log_mark=marks[-1].encode() if marks else None,
        agreed_with=sorted(table.agreed_with),
    )
