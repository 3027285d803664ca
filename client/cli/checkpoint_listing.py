"""Lists the checkpoints in a folder, of a client or of a Spark query.

Nothing is changed or locked here: a checkpoint in use is shown as it is at this moment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from databus.client.checkpoints.store import read_file
from databus.client.spark.planning.offsets import AtScn, Place, from_offset
from databus.daemon.files import holder_of
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode
from databus.schemas.errors import CheckpointError

_OFFSET_KEYS = frozenset({"physical", "sources", "v"})
_MODES = {
    ConsumptionMode.INIT: "start",
    ConsumptionMode.SNAPSHOT: "snapshot",
    ConsumptionMode.CATCHUP: "catch-up",
    ConsumptionMode.ONLINE: "online",
}


@dataclass(frozen=True, slots=True)
class Shown:
    """One listed checkpoint.

    `scn` is the last consumed window, None without one; `time_ns` is its commit time, None
    if unknown; `phase` describes an unfinished snapshot or window. `holder` is the process
    that uses it, "" for none. `term` is that of the lease under which it was written.
    """

    name: str
    sources: tuple[str, ...]
    mode: str
    scn: int | None
    time_ns: int | None
    phase: str
    file: Path
    holder: str = ""
    physical_source: str = ""  # if the checkpoint contains it
    term: int | None = None

    @property
    def is_spark(self) -> bool:
        """Whether it belongs to a Spark query, which stores a position per physical source."""
        return bool(self.physical_source)


def shown_at(place: Path) -> list[Shown]:
    """Return the checkpoints in a folder, or the one in a file; raise CheckpointError."""
    if place.is_dir():
        if (place / "offsets").is_dir():
            return _of_spark(place)
        found = [_of_client(path) for path in sorted(place.glob("*.json"))]
    elif place.exists():
        found = [_of_client(place)]
    else:
        raise CheckpointError(f"{place}: no such folder or file; see checkpoint_dir")
    if not found:
        raise CheckpointError(f"{place}: contains no checkpoint")
    return found


def _of_client(path: Path) -> Shown:
    kept = read_file(path)
    if kept is None:
        raise CheckpointError(f"{path}: no such file")
    # A new owner of the lease, which has not saved a checkpoint yet.
    checkpoint = kept.checkpoint or Checkpoint()
    scn, time_ns = done_scn(checkpoint), checkpoint.ts_ns
    return Shown(
        kept.name,
        kept.sources,
        _MODES[checkpoint.mode],
        scn,
        time_ns if time_ns > 0 else None,
        phase_of(checkpoint),
        path,
        holder_of(path.with_suffix(".lock")),
        term=kept.term,
    )


def done_scn(checkpoint: Checkpoint) -> int | None:
    """Return the last window up to which everything is consumed; None before the first."""
    if checkpoint.is_bootstrap:
        return checkpoint.bootstrap_since_scn if checkpoint.bootstrap_since_scn >= 0 else None
    scn = checkpoint.window_scn if checkpoint.is_whole_window else checkpoint.prev_scn
    return scn if scn >= 0 else None


def phase_of(checkpoint: Checkpoint) -> str:
    """Describe an unfinished bootstrap or window; "" between two windows."""
    start, target = checkpoint.bootstrap_start_scn, checkpoint.bootstrap_target_scn
    if checkpoint.mode is ConsumptionMode.SNAPSHOT:
        if not checkpoint.snapshot_source:
            return "of nothing yet"
        row = "all rows" if checkpoint.is_snapshot_done else f"row {checkpoint.snapshot_offset}"
        return f"of {checkpoint.snapshot_source}, {row}, as of scn {start}"
    if checkpoint.mode is ConsumptionMode.CATCHUP:
        return f"of {checkpoint.catchup_source}, scn {checkpoint.window_scn}, up to {target}"
    if checkpoint.is_flexible:
        return "from the oldest window"
    if not checkpoint.is_whole_window:
        return f"{checkpoint.window_offset} events into window {checkpoint.window_scn}"
    return ""


def _of_spark(folder: Path) -> list[Shown]:
    """Return a query's positions after its last committed batch."""
    batch = _newest_batch(folder / "commits")
    planned = _newest_batch(folder / "offsets")
    if planned is None:
        raise CheckpointError(f"{folder}: the query has not planned a batch yet")
    # Spark writes a batch's offsets before it runs, and its commit afterwards: only a committed
    # batch counts as done.
    file = folder / "offsets" / str(planned if batch is None else batch)
    found: list[Shown] = []
    for offset in _offsets_in(file):
        read = from_offset(offset)
        done = "" if batch == planned else f", batch {planned} is planned"
        said = f"batch {batch} done{done}" if batch is not None else "batch 0 is planned"
        together = tuple(source for source in read.sources if source not in read.joining)
        for name, place in read.places.items():
            found.append(_of_place(name, place, together, said, file))
        # The physical source of a source that joins is not in the offset.
        for source, place in read.joining.items():
            found.append(_of_place("", place, (source,), f"joins; {said}", file))
    if not found:
        raise CheckpointError(f"{folder}: the query does not read the databus format")
    return found


def _of_place(name: str, place: Place, sources: tuple[str, ...], said: str, file: Path) -> Shown:
    if isinstance(place, AtScn):
        scn = place.scn if place.scn >= 0 else None
        time_ns = place.time_ms * 1_000_000 or None
        return Shown("spark", sources, "online", scn, time_ns, said, file, physical_source=name)
    phase = f"of {place.source}, row {place.row}, as of scn {place.at_scn}; {said}"
    return Shown("spark", sources, "snapshot", None, None, phase, file, physical_source=name)


def _newest_batch(folder: Path) -> int | None:
    names = [path.name for path in folder.glob("*")] if folder.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=None)


def _offsets_in(file: Path) -> list[Mapping[str, Any]]:
    """Return the offsets of format databus in a file of Spark's offset log."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file}: cannot be read: {error}") from error
    found: list[Mapping[str, Any]] = []
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            continue  # the version, or an offset of another format
        if isinstance(value, dict) and value.keys() >= _OFFSET_KEYS:
            found.append(value)
    return found
