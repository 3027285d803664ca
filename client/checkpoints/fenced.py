"""Checkpoints that are written under leases, in any store of records.

Every write names the term of the writer's lease. A smaller term than the greatest that the
checkpoint has is refused, also if the process that writes it was frozen between its last look at
the lease and the write: comparison and write are one step of the store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from databus.groups.kept_checkpoint import (
    Kept,
    check_no_term,
    check_owner,
    decode_kept,
    encode_kept,
    kept_name,
)
from databus.groups.reading import CHECKPOINTS
from databus.leases.errors import LeaseError, StaleTermError, check_term
from databus.leases.places import open_records
from databus.leases.records import Records, change
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import CheckpointError


@runtime_checkable
class FencedCheckpointStore(Protocol):
    """A checkpoint store that several processes write, one after another, each under a term."""

    def begin_term(self, name: str, sources: Sequence[str], term: int) -> Checkpoint | None:
        """Return the saved checkpoint, None without one, and refuse smaller terms from now on.

        A new owner calls it before it reads anything: what an earlier owner has saved until then
        is returned, and nothing that it saves later is taken. Raises StaleTermError,
        CheckpointError.
        """
        ...

    def save_under(
        self, name: str, sources: Sequence[str], checkpoint: Checkpoint, term: int
    ) -> None:
        """Save durably; raise StaleTermError if a greater term has begun, CheckpointError."""

    def term(self, name: str, sources: Sequence[str]) -> int:
        """Return the greatest term that has begun, 0 without one; raise CheckpointError."""
        ...


class RecordCheckpoints:
    """Checkpoints in a store of records, with or without terms.

    Without terms nothing keeps two processes from writing one checkpoint: only one may run.
    """

    def __init__(self, records: Records, folder: str = CHECKPOINTS) -> None:
        """Keep checkpoints in `records`; `folder` is the beginning of their names."""
        self._records, self._folder = records, folder

    def load(self, name: str, sources: Sequence[str]) -> Checkpoint | None:
        """Return the saved checkpoint, or None; raise CheckpointError."""
        kept = self._kept(name, sources)
        return None if kept is None else kept.checkpoint

    def save(self, name: str, sources: Sequence[str], checkpoint: Checkpoint) -> None:
        """Save durably; raise CheckpointError, also if it is written under leases."""

        def saved(kept: Kept | None) -> Kept:
            if kept is not None:
                check_no_term(kept, self._place(name, sources))
            return Kept(name, tuple(sources), checkpoint)

        self._change(name, sources, saved)

    def begin_term(self, name: str, sources: Sequence[str], term: int) -> Checkpoint | None:
        """Return the saved checkpoint, and refuse smaller terms; see FencedCheckpointStore."""
        found: list[Checkpoint | None] = []

        def begun(kept: Kept | None) -> Kept:
            self._check_term(kept, name, sources, term)
            found[:] = [None if kept is None else kept.checkpoint]
            return Kept(name, tuple(sources), found[0], term)

        self._change(name, sources, begun)
        return found[0]

    def save_under(
        self, name: str, sources: Sequence[str], checkpoint: Checkpoint, term: int
    ) -> None:
        """Save durably; raise StaleTermError if a greater term has begun, CheckpointError."""

        def saved(kept: Kept | None) -> Kept:
            self._check_term(kept, name, sources, term)
            return Kept(name, tuple(sources), checkpoint, term)

        self._change(name, sources, saved)

    def term(self, name: str, sources: Sequence[str]) -> int:
        """Return the greatest term that has begun, 0 without one; raise CheckpointError."""
        kept = self._kept(name, sources)
        return 0 if kept is None else kept.term or 0

    def close(self) -> None:
        """Close the store's connections."""
        self._records.close()

    def _kept(self, name: str, sources: Sequence[str]) -> Kept | None:
        try:
            stored = self._records.read(self._record(name, sources))
        except LeaseError as error:
            raise CheckpointError(f"the checkpoint of {name!r} cannot be read: {error}") from error
        return None if stored is None else self._decoded(stored.data, name, sources)

    def _change(
        self, name: str, sources: Sequence[str], changed: Callable[[Kept | None], Kept]
    ) -> None:
        def replaced(data: bytes | None) -> bytes:
            kept = None if data is None else self._decoded(data, name, sources)
            return encode_kept(changed(kept))

        try:
            change(self._records, self._record(name, sources), replaced)
        except StaleTermError:
            raise
        except LeaseError as error:
            text = f"the checkpoint of {name!r} cannot be written: {error}"
            raise CheckpointError(text) from error

    def _check_term(self, kept: Kept | None, name: str, sources: Sequence[str], term: int) -> None:
        what = f"checkpoint {self._place(name, sources)} of {name!r}"
        check_term(what, term, None if kept is None else kept.term)

    def _decoded(self, data: bytes, name: str, sources: Sequence[str]) -> Kept:
        place = self._place(name, sources)
        kept = decode_kept(data, place)
        check_owner(kept, name, sources, place)
        return kept

    def _record(self, name: str, sources: Sequence[str]) -> str:
        return self._folder + kept_name(name, sources)

    def _place(self, name: str, sources: Sequence[str]) -> str:
        return f"{self._records.shown} {self._record(name, sources)}"


def open_checkpoints(url: str) -> RecordCheckpoints:
    """Return the checkpoints at a URL of SQLAlchemy or ZooKeeper; `close` them.

    For files there is `FileCheckpoints`. Raises SettingsError.
    """
    return RecordCheckpoints(open_records(url))
