"""What an owner writes under its lease: a checkpoint and a MaxSCN, in the same kind of store."""

from __future__ import annotations

from pathlib import Path

from databus.client.checkpoints.fenced import FencedCheckpointStore, RecordCheckpoints
from databus.client.checkpoints.store import FileCheckpoints
from databus.leases.places import open_records
from databus.relay.capture.max_scn import FencedMaxScnStore, FileMaxScn, RecordMaxScn
from databus.schemas.checkpoint import Checkpoint

LEASE = "billing/7"
NAME, SOURCES = "billing", ("shop.orders",)


class Positions:
    """The positions of one owner."""

    checkpoints: FencedCheckpointStore
    max_scn: FencedMaxScnStore

    def __init__(self, url: str, folder: Path) -> None:
        """Open them: in the store at the URL, or as files in `folder` with the store of files."""
        self._records = open_records(url)
        if url.startswith("file:"):
            self.checkpoints = FileCheckpoints(folder / "checkpoints")
            self.max_scn = FileMaxScn(folder / "shop.scn")
        else:
            self.checkpoints = RecordCheckpoints(self._records)
            self.max_scn = RecordMaxScn(self._records, "shop")

    def begin(self, term: int) -> tuple[Checkpoint | None, int | None]:
        """Begin a term in both and return what they have."""
        return self.checkpoints.begin_term(NAME, SOURCES, term), self.max_scn.begin_term(term)

    def close(self) -> None:
        """Close the store."""
        self._records.close()
