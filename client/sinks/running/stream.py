"""What a sink reads: the windows of one physical source, by a registration of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from databus.client.checkpoints.store import CheckpointStore, save_in
from databus.client.dispatcher.data_window import DataWindow
from databus.client.machines.reachability import Silence
from databus.client.sinks.contract import Position
from databus.client.sinks.running.reading_trouble import Answer, ReadingTrouble, reading_trouble


class SinkStream(Protocol):
    """Windows, and the position that is stored with them."""

    source: str  # the physical source

    @property
    def sources(self) -> Sequence[str]:
        """The sources that are read."""
        ...

    @property
    def scn(self) -> int:
        """The SCN of the last window that was passed, also of one without rows; -1 = none."""
        ...

    @property
    def trouble(self) -> ReadingTrouble:
        """Why nothing can be read now."""
        ...

    def load(self) -> Position | None:
        """Return the stored position; raise CheckpointError."""
        ...

    def begin_at(self, position: Position) -> None:
        """Store another position: the next `windows` begin there. Raises CheckpointError."""

    def windows(self) -> Iterator[DataWindow]:
        """Yield windows; they are committed by hand. Raises what ends reading."""
        ...

    def end(self) -> None:
        """End the iteration of `windows`. Thread-safe."""


class WindowsClient(Protocol):
    """What is needed of a `DatabusClient`."""

    @property
    def registrations(self) -> Sequence[Any]:
        """The running registrations."""
        ...

    @property
    def report_answer(self) -> Answer:
        """Last answers of the relays."""
        ...

    def silence_of(self, registration: Any) -> Silence | None:
        """Return since when no server answers a registration; None if one does."""
        ...

    def windows(self, *sources: str, name: str, auto_commit: bool) -> Iterator[DataWindow]:
        """Iterate over windows."""
        ...


class ClientStream:
    """The windows of a registration of a client, which has its checkpoints in a store."""

    def __init__(
        self,
        client: WindowsClient,
        store: CheckpointStore,
        name: str,
        sources: Sequence[str],
        source: str = "",
    ) -> None:
        """`name` is the registration's; `source` the physical source's, if it is known."""
        self.source = source or name
        self.sources = tuple(sources)
        self._client, self._store, self._name = client, store, name

    @property
    def scn(self) -> int:
        """The SCN of the last window that was passed."""
        found = self._registration()
        return -1 if found is None else int(found.status.scn)

    @property
    def trouble(self) -> ReadingTrouble:
        """Why nothing can be read now."""
        found = self._registration()
        if found is None:
            return ReadingTrouble()
        client = self._client
        return reading_trouble(found, client.silence_of(found), client.report_answer, self.source)

    def load(self) -> Position | None:
        """Return the stored position; raise CheckpointError."""
        checkpoint = self._store.load(self._name, self.sources)
        return None if checkpoint is None else Position(self.source, checkpoint)

    def begin_at(self, position: Position) -> None:
        """Store another position; raise CheckpointError."""
        save_in(self._store, self._name, self.sources, position.checkpoint)

    def windows(self) -> Iterator[DataWindow]:
        """Yield windows; raise what ends reading."""
        yield from self._client.windows(*self.sources, name=self._name, auto_commit=False)

    def end(self) -> None:
        """End the iteration. Thread-safe."""
        found = self._registration()
        if found is not None:
            found.stop()

    def _registration(self) -> Any:
        key = self._name, self.sources
        running = (one for one in self._client.registrations if one.subscription.key == key)
        return next(running, None)
