"""The position of a consumer, as an immutable checkpoint, and its transitions.

Each transition returns a new checkpoint, or raises CheckpointError if the bootstrap protocol does
not permit it: the start SCN is set once, and the target SCN only after a snapshot and never below
the start SCN. Unknown JSON keys are preserved.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from databus.schemas.errors import CheckpointError
from databus.schemas.scn import MAX_SCN


class ConsumptionMode(StrEnum):
    """The phase of a consumer's reading."""

    INIT = "INIT"
    SNAPSHOT = "BOOTSTRAP_SNAPSHOT"
    CATCHUP = "BOOTSTRAP_CATCHUP"
    ONLINE = "ONLINE_CONSUMPTION"


# A key of this project's clients: whether a bootstrap reads all snapshots before its catch-up.
ORDER_KEY, LINEAR = "bootstrap_order", "linear"

# Attribute, JSON key; unknown numbers are -1, unknown texts "".
_NUMBERS = {
    "window_scn": "windowScn",
    "window_offset": "windowOffset",
    "prev_scn": "prevScn",
    "ts_ns": "tsNsecs",
    "snapshot_offset": "snapshot_offset",
    "bootstrap_since_scn": "bootstrap_since_scn",
    "bootstrap_start_scn": "bootstrap_start_scn",
    "bootstrap_target_scn": "bootstrap_target_scn",
    "seen_scn": "bootstrap_seen_scn",  # not in Databus: a peer may omit it
    "snapshot_source_index": "bootstrap_snapshot_source_index",
    "catchup_source_index": "bootstrap_catchup_source_index",
    # Not in Databus: a window whose rows the consumer was sent. It identifies the consumer's log.
    "mark_scn": "databus_mark_scn",
    "mark_ts_ns": "databus_mark_ts",
    # The same, of rows that the consumer need not have: a window of `log_source`, which its relay
    # had; of any source without a name.
    "log_scn": "databus_log_scn",
    "log_ts_ns": "databus_log_ts",
}
_TEXTS = {
    "snapshot_source": "snapshot_source",
    "catchup_source": "catchup_source",
    "server_info": "bootstrap_server_info",
    "log_source": "databus_log_source",
}
_MODE_KEY = "consumption_mode"
_KNOWN_KEYS = {_MODE_KEY, *_NUMBERS.values(), *_TEXTS.values()}
_ALWAYS_WRITTEN = {"window_scn", "window_offset"}
# Prefix of the extra keys that are dropped at the end of a bootstrap.
_OF_A_BOOTSTRAP = "bootstrap_"
_MAX_TEXT_CHARS = 1 << 16

LogWindow = tuple[int, int, str]  # SCN, timestamp (ns) and a source of a window with rows


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The position of a consumer. -1 = not known; for `window_offset` = the whole window."""

    mode: ConsumptionMode = ConsumptionMode.INIT
    window_scn: int = -1
    window_offset: int = -1
    prev_scn: int = -1
    ts_ns: int = -1
    snapshot_source: str = ""
    snapshot_offset: int = -1
    catchup_source: str = ""
    bootstrap_since_scn: int = -1
    bootstrap_start_scn: int = -1
    bootstrap_target_scn: int = -1
    seen_scn: int = -1
    snapshot_source_index: int = -1
    catchup_source_index: int = -1
    mark_scn: int = -1
    mark_ts_ns: int = -1
    log_scn: int = -1
    log_ts_ns: int = -1
    server_info: str = ""
    log_source: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def flexible(cls) -> Checkpoint:
        """Return the checkpoint that means: from whatever is oldest."""
        return cls(ConsumptionMode.ONLINE)

    @classmethod
    def at(cls, scn: int, ts_ns: int = -1) -> Checkpoint:
        """Return the checkpoint of a consumer that has consumed all of window `scn`."""
        if not 0 <= scn <= MAX_SCN:
            raise CheckpointError(f"window scn {scn} is outside 0..{MAX_SCN}")
        return cls(ConsumptionMode.ONLINE, scn, -1, scn, ts_ns)

    @classmethod
    def from_json(cls, text: str | bytes) -> Checkpoint:
        """Read a checkpoint; raises CheckpointError when it is malformed or contradicts itself."""
        if len(text) > _MAX_TEXT_CHARS:
            raise CheckpointError(f"checkpoint is longer than {_MAX_TEXT_CHARS} characters")
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"checkpoint is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise CheckpointError("checkpoint is not a JSON object")
        return _from_values(values)

    @property
    def is_stock_catch_up(self) -> bool:
        """Whether LinkedIn's client catches up with one source; its checkpoints have no order."""
        is_catch_up = self.mode is ConsumptionMode.CATCHUP
        return is_catch_up and bool(self.catchup_source) and ORDER_KEY not in self.extra

    def to_json(self) -> str:
        """Return the checkpoint's JSON text, the same for equal checkpoints."""
        values: dict[str, Any] = {_MODE_KEY: self.mode.value}
        for name, key in (_NUMBERS | _TEXTS).items():
            value = getattr(self, name)
            if value not in (-1, "") or name in _ALWAYS_WRITTEN:
                values[key] = value
        values.update(self.extra)
        return json.dumps(values, separators=(",", ":"))

    @property
    def is_flexible(self) -> bool:
        """Whether it means: from whatever is oldest."""
        is_nowhere = self.window_scn == -1 and self.ts_ns == -1
        return self.mode is ConsumptionMode.ONLINE and is_nowhere

    @property
    def is_whole_window(self) -> bool:
        """Whether window `window_scn` was consumed to its end."""
        return self.window_offset == -1

    @property
    def restart_scn(self) -> int | None:
        """The SCN after which a relay is read from here; None without one.

        Within a bootstrap there is none: it continues at a bootstrap server.
        """
        scn = self.window_scn - (0 if self.is_whole_window else 1)
        if self.mode is ConsumptionMode.ONLINE and self.window_offset > 0:
            scn = self.prev_scn
        return None if self.is_bootstrap or scn < 0 else scn

    @property
    def is_bootstrap(self) -> bool:
        """Whether the consumer is in a snapshot or in the catch-up after it."""
        return self.mode in (ConsumptionMode.SNAPSHOT, ConsumptionMode.CATCHUP)

    @property
    def is_snapshot_done(self) -> bool:
        """Whether all rows of the snapshot's current source were read."""
        return self.mode is ConsumptionMode.SNAPSHOT and self.snapshot_offset == -1

    def after_event(self, scn: int) -> Checkpoint:
        """Return the checkpoint after one more event of window `scn`."""
        self._must_be("consume an event", ConsumptionMode.ONLINE, ConsumptionMode.CATCHUP)
        if scn == self.window_scn and self.window_offset >= 0:
            return replace(self, window_offset=self.window_offset + 1)
        if scn <= self.window_scn:
            raise CheckpointError(f"window {scn} after window {self.window_scn} was consumed")
        return replace(self, window_scn=scn, window_offset=1)

    def after_window(self, scn: int, ts_ns: int = -1, *, has_rows: bool = False) -> Checkpoint:
        """Return the checkpoint after the end of window `scn`.

        A window with rows becomes the mark, because every server of the same log has it.
        """
        self._must_be("end a window", ConsumptionMode.ONLINE, ConsumptionMode.CATCHUP)
        if scn < self.window_scn:
            raise CheckpointError(f"window {scn} ends after window {self.window_scn}")
        is_mark = has_rows and ts_ns >= 0
        # Hot path: `replace` takes twice as long.
        return Checkpoint(
            self.mode,
            scn,
            -1,
            scn,
            max(ts_ns, self.ts_ns),
            self.snapshot_source,
            self.snapshot_offset,
            self.catchup_source,
            self.bootstrap_since_scn,
            self.bootstrap_start_scn,
            self.bootstrap_target_scn,
            self.seen_scn,
            self.snapshot_source_index,
            self.catchup_source_index,
            scn if is_mark else self.mark_scn,
            ts_ns if is_mark else self.mark_ts_ns,
            self.log_scn,
            self.log_ts_ns,
            self.server_info,
            self.log_source,
            self.extra,
        )

    def start_bootstrap(self, server_info: str = "") -> Checkpoint:
        """Return the checkpoint at the beginning of a bootstrap.

        It has only what the consumer has consumed. A running bootstrap starts over, after the
        same SCN as before. It may have delivered rows as of its start SCN already (`seen_scn`):
        then deletions since that SCN must be delivered, too.
        """
        seen_scns = [self.seen_scn, self.bootstrap_start_scn] if self.is_bootstrap else []
        whole_scn = self.window_scn if self.is_whole_window else -1
        since_scn = self.bootstrap_since_scn if self.is_bootstrap else max(self.prev_scn, whole_scn)
        return Checkpoint(
            ConsumptionMode.SNAPSHOT,
            bootstrap_since_scn=max(since_scn, 0),
            seen_scn=min((scn for scn in seen_scns if scn != -1), default=-1),
            server_info=server_info,
            extra=self._lasting_extra(),
        )._proved_as(self)

    def with_start_scn(self, scn: int) -> Checkpoint:
        """Return the checkpoint with the start SCN of the snapshots, which is set once."""
        self._must_be("set the start scn", ConsumptionMode.SNAPSHOT)
        if self.bootstrap_start_scn != -1:
            raise CheckpointError(f"start scn is {self.bootstrap_start_scn} already")
        _check_scn("start scn", scn)
        return replace(self, bootstrap_start_scn=scn)

    def held_by(self, server_info: str) -> Checkpoint:
        """Return the checkpoint with the server (host and port) that holds the session."""
        return replace(self, server_info=server_info)

    def start_snapshot(self, source: str, index: int) -> Checkpoint:
        """Return the checkpoint at the beginning of a source's snapshot; clears the target SCN."""
        self._must_be("start a snapshot", ConsumptionMode.SNAPSHOT, ConsumptionMode.CATCHUP)
        if self.bootstrap_start_scn == -1:
            raise CheckpointError("a snapshot starts after the start scn is known")
        return replace(
            self,
            mode=ConsumptionMode.SNAPSHOT,
            snapshot_source=source,
            snapshot_source_index=index,
            snapshot_offset=0,
            bootstrap_target_scn=-1,
        )

    def after_snapshot_row(self, row_id: int) -> Checkpoint:
        """Return the checkpoint after row `row_id` of the snapshot."""
        self._must_be("read a snapshot row", ConsumptionMode.SNAPSHOT)
        if self.snapshot_offset == -1 or row_id <= self.snapshot_offset:
            raise CheckpointError(f"snapshot row {row_id} after row {self.snapshot_offset}")
        return replace(self, snapshot_offset=row_id)

    def end_snapshot(self) -> Checkpoint:
        """Return the checkpoint after the last row of the current source's snapshot."""
        self._must_be("end a snapshot", ConsumptionMode.SNAPSHOT)
        if not self.snapshot_source:
            raise CheckpointError("no snapshot has started")
        return replace(self, snapshot_offset=-1)

    def with_target_scn(self, scn: int) -> Checkpoint:
        """Return the checkpoint with the target SCN; only after a snapshot, not below the start."""
        if not (self.is_snapshot_done and self.snapshot_source):
            raise CheckpointError("the target scn is set at the end of a snapshot")
        if scn < self.bootstrap_start_scn:
            raise CheckpointError(
                f"target scn {scn} is below the start scn {self.bootstrap_start_scn}"
            )
        _check_scn("target scn", scn)
        return replace(self, bootstrap_target_scn=scn)

    def start_catch_up(self, source: str, index: int, since_scn: int = -1) -> Checkpoint:
        """Return the checkpoint at the beginning of a source's catch-up.

        It begins at the start SCN, or at `since_scn` if the source was caught up to there before.
        """
        self._must_be("start a catch-up", ConsumptionMode.SNAPSHOT, ConsumptionMode.CATCHUP)
        if self.bootstrap_target_scn == -1:
            raise CheckpointError("a catch-up starts after the target scn is known")
        return replace(
            self,
            mode=ConsumptionMode.CATCHUP,
            catchup_source=source,
            catchup_source_index=index,
            window_scn=max(since_scn, self.bootstrap_start_scn),
            window_offset=-1,
        )

    def after_log_rows(self, scn: int, offset: int, ts_ns: int = -1) -> Checkpoint:
        """Return the checkpoint after `offset` rows of window `scn` in the catch-up; -1 = all."""
        self._must_be("read the log", ConsumptionMode.CATCHUP)
        if scn > self.bootstrap_target_scn:
            raise CheckpointError(
                f"log rows up to {scn}, the target is {self.bootstrap_target_scn}"
            )
        if _place(scn, offset) <= _place(self.window_scn, self.window_offset):
            raise CheckpointError(
                f"log rows up to {scn}, {offset} after {self.window_scn}, {self.window_offset}"
            )
        return replace(self, window_scn=scn, window_offset=offset, ts_ns=max(ts_ns, self.ts_ns))

    @property
    def is_caught_up(self) -> bool:
        """Whether the catch-up has reached its target."""
        is_there = self.window_scn == self.bootstrap_target_scn and self.is_whole_window
        return self.mode is ConsumptionMode.CATCHUP and is_there

    def online_at(self, target_scn: int) -> Checkpoint:
        """Return the checkpoint after a bootstrap: online after the target SCN."""
        self._must_be("end a bootstrap", ConsumptionMode.CATCHUP)
        if target_scn != self.bootstrap_target_scn:
            raise CheckpointError(
                f"bootstrap ends at scn {target_scn}, its target is {self.bootstrap_target_scn}"
            )
        online = replace(Checkpoint.at(target_scn, self.ts_ns), extra=self._lasting_extra())
        return online._proved_as(self)

    @property
    def mark(self) -> tuple[int, int] | None:
        """A window (SCN, timestamp) whose rows the consumer has; None if none is known."""
        return (self.mark_scn, self.mark_ts_ns) if self.mark_scn > 0 else None

    def with_mark(self, mark: tuple[int, int] | None) -> Checkpoint:
        """Return the checkpoint with another mark; None removes it."""
        scn, ts_ns = mark or (-1, -1)
        return replace(self, mark_scn=scn, mark_ts_ns=ts_ns)

    @property
    def log_window(self) -> LogWindow | None:
        """A window that the consumer's relay had, with rows of any source; None if none is known.

        The name of a source of it is empty in checkpoints of earlier versions.
        """
        return (self.log_scn, self.log_ts_ns, self.log_source) if self.log_scn > 0 else None

    def with_log_window(self, window: LogWindow | None) -> Checkpoint:
        """Return the checkpoint with another window that its relay had; None removes it."""
        scn, ts_ns, source = window or (-1, -1, "")
        return replace(self, log_scn=scn, log_ts_ns=ts_ns, log_source=source)

    def _proved_as(self, other: Checkpoint) -> Checkpoint:
        return self.with_mark(other.mark).with_log_window(other.log_window)

    def with_extra(self, **values: Any) -> Checkpoint:
        """Return the checkpoint with extra JSON keys; `bootstrap_…` keys last for one bootstrap."""
        return replace(self, extra={**self.extra, **values})

    def _lasting_extra(self) -> dict[str, Any]:
        return {k: v for k, v in self.extra.items() if not k.startswith(_OF_A_BOOTSTRAP)}

    def _must_be(self, action: str, *modes: ConsumptionMode) -> None:
        if self.mode not in modes:
            raise CheckpointError(f"cannot {action} in mode {self.mode}")


class CheckpointMult:
    """Checkpoints of several physical partitions: `checkPointMult` on the wire.

    A JSON map from the partition's JSON to the checkpoint's JSON, both as text. The keys of
    `by_partition` are the partitions' texts, unchanged.
    """

    def __init__(self, by_partition: Mapping[str, Checkpoint]) -> None:
        self.by_partition = dict(by_partition)

    @classmethod
    def from_json(cls, text: str | bytes) -> CheckpointMult:
        """Parse the JSON; raises CheckpointError if it or one of its checkpoints is malformed."""
        if len(text) > 64 * _MAX_TEXT_CHARS:
            raise CheckpointError("checkPointMult is too long")
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"checkPointMult is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise CheckpointError("checkPointMult is not a JSON object")
        by_partition = {}
        for partition, checkpoint in values.items():
            if not isinstance(checkpoint, str):
                raise CheckpointError(f"checkpoint of partition {partition} is not a text")
            by_partition[partition] = Checkpoint.from_json(checkpoint)
        return cls(by_partition)

    def to_json(self) -> str:
        """Return the JSON text."""
        texts = {key: checkpoint.to_json() for key, checkpoint in self.by_partition.items()}
        return json.dumps(texts, separators=(",", ":"))


def _from_values(values: dict[str, Any]) -> Checkpoint:
    known: dict[str, Any] = {"mode": _mode(values.get(_MODE_KEY))}
    for name, key in _NUMBERS.items():
        number = values.get(key, -1)
        if type(number) is not int or not -1 <= number <= MAX_SCN:
            raise CheckpointError(f"checkpoint: {key} is {number!r}, not a number from -1 on")
        known[name] = number
    for name, key in _TEXTS.items():
        text = values.get(key) or ""
        if not isinstance(text, str):
            raise CheckpointError(f"checkpoint: {key} is {text!r}, not a text")
        known[name] = text
    extra = {key: value for key, value in values.items() if key not in _KNOWN_KEYS}
    checkpoint = Checkpoint(**known, extra=extra)
    _check_consistency(checkpoint)
    return checkpoint


def _mode(value: Any) -> ConsumptionMode:
    try:
        return ConsumptionMode(value)
    except ValueError:
        raise CheckpointError(
            f"checkpoint: consumption_mode is {value!r}, not one of {', '.join(ConsumptionMode)}"
        ) from None


def _check_consistency(checkpoint: Checkpoint) -> None:
    if checkpoint.window_scn == -1 and checkpoint.window_offset > 0:
        raise CheckpointError("checkpoint: windowOffset without a windowScn")
    start, target = checkpoint.bootstrap_start_scn, checkpoint.bootstrap_target_scn
    if target != -1 and target < start:
        raise CheckpointError(f"checkpoint: target scn {target} is below the start scn {start}")


def _place(scn: int, offset: int) -> tuple[int, float]:
    return scn, math.inf if offset == -1 else offset


def _check_scn(name: str, scn: int) -> None:
    if not 0 <= scn <= MAX_SCN:
        raise CheckpointError(f"{name} {scn} is outside 0..{MAX_SCN}")
