"""The epochs of one physical source, and what was delivered, stored durably.

One file beside the ring, replaced as a whole (docs/formats/epochs.md). A file that is damaged is an
error: a guessed epoch would be a wrong SCN.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from zlib import crc32

from databus.daemon.files import replace_file
from databus.relay.sources.epochs import Epoch, Executed
from databus.schemas.errors import RingError

EPOCHS_SUFFIX = ".epochs.json"  # of the file's name, after that of the physical source
FORMAT = 1


class EpochTable:
    """The epochs in one file; in memory without a path. Raises RingError.

    One thread at a time may write; any may read.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._epochs: tuple[Epoch, ...] = ()
        self._executed: Executed | None = None
        self._saved: Executed | None = None
        self._agreed_with: frozenset[str] = frozenset()
        # Called with each change of them, before a window of a new epoch is captured.
        self.on_change: Callable[[], None] | None = None
        if path is not None and path.exists():
            self._load(path)

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        """All epochs, the oldest first."""
        return self._epochs

    @property
    def newest(self) -> Epoch | None:
        """The newest epoch; None before the first."""
        return self._epochs[-1] if self._epochs else None

    @property
    def executed(self) -> Executed | None:
        """What was delivered, as of the last `note`."""
        return self._executed

    def begin(self, epoch: Epoch) -> None:
        """Add an epoch, durably; the newest one's number replaces that one. Raises RingError."""
        newest = self.newest
        if newest is not None and epoch.number < newest.number:
            raise RingError(
                f"epoch {epoch.number} cannot begin at server {epoch.server}: epoch "
                f"{newest.number} has begun at server {newest.server}, and SCNs must not go back"
            )
        kept = tuple(one for one in self._epochs if one.number < epoch.number)
        self._change((*kept, epoch))

    def adopt(self, epochs: Iterable[Epoch]) -> None:
        """Take over the epochs of another relay, durably. Raises RingError."""
        adopted = tuple(epochs)
        if adopted != self._epochs:
            self._change(adopted)

    def _change(self, epochs: tuple[Epoch, ...]) -> None:
        self._epochs = epochs
        self._write()
        if self.on_change is not None:
            self.on_change()

    @property
    def agreed_with(self) -> frozenset[str]:
        """The URLs of the other relays that have agreed to these epochs."""
        return self._agreed_with

    def agree(self, urls: Iterable[str]) -> None:
        """Store which relays have agreed, durably. Raises RingError."""
        agreed_with = frozenset(urls)
        if agreed_with != self._agreed_with:
            self._agreed_with = agreed_with
            self._write()

    def note(self, executed: Executed) -> None:
        """Keep what was delivered, until the next `save`."""
        self._executed = executed

    def save(self) -> None:
        """Save what was noted, durably. Raises RingError."""
        if self._executed != self._saved:
            self._write()

    def _write(self) -> None:
        executed = self._executed
        if self._path is not None:
            content = {
                "format": FORMAT,
                "epochs": [asdict(epoch) for epoch in self._epochs],
                "executed": None if executed is None else executed._asdict(),
                "agreed_with": sorted(self._agreed_with),
            }
            text = json.dumps(content, indent=1)
            try:
                replace_file(self._path, f"{text}\ncrc={crc32(text.encode()):08x}\n".encode())
            except OSError as error:
                raise RingError(f"the table of epochs cannot be saved: {error}") from error
        self._saved = executed

    def _load(self, path: Path) -> None:
        try:
            text, _, crc = path.read_text(encoding="ascii").rpartition("\ncrc=")
            if crc != f"{crc32(text.encode()):08x}\n":
                raise ValueError("its checksum is wrong")
            content = json.loads(text)
            if content["format"] != FORMAT:
                raise ValueError(f"it has format {content['format']}, and this version reads 1")
            self._epochs = tuple(Epoch(**epoch) for epoch in content["epochs"])
            # Not in a table that an older version has written.
            self._agreed_with = frozenset(content.get("agreed_with", ()))
            found = content["executed"]
            self._executed = self._saved = None if found is None else Executed(**found)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RingError(
                f"the table of epochs {path} cannot be read: {error}; restore it, or remove it and "
                "set `epoch` of this physical source to the one in its newest SCN"
            ) from error
