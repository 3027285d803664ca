"""The checkpoint of a stock client, and the steps that its two pullers take with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.promises.stock_databus.stock_events import CHECKPOINT, StockEvent, StockRefusalError

ONLINE = "ONLINE_CONSUMPTION"
SNAPSHOT = "BOOTSTRAP_SNAPSHOT"
CATCH_UP = "BOOTSTRAP_CATCHUP"
WHOLE_WINDOW = -1


class StockCheckpoint:
    """Where a stock client is: the map that it sends as JSON."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields

    @classmethod
    def from_nothing(cls) -> StockCheckpoint:
        """Return the checkpoint of a client that never ran: everything from SCN 0 on."""
        return cls.at(0, prev_scn=-1)

    @classmethod
    def flexible(cls) -> StockCheckpoint:
        """Return the checkpoint of a client that takes what the relay has."""
        return cls.at(-1, prev_scn=-1)

    @classmethod
    def at(cls, scn: int, *, prev_scn: int) -> StockCheckpoint:
        """Return the checkpoint of a client that has read a window."""
        return cls(
            {
                "tsNsecs": -1,
                "prevScn": prev_scn,
                "snapshot_offset": -1,
                "consumption_mode": ONLINE,
                "bootstrap_start_scn": -1,
                "windowOffset": WHOLE_WINDOW,
                "windowScn": scn,
            }
        )

    @property
    def text(self) -> str:
        """The JSON, as it is sent."""
        return json.dumps(self.fields, separators=(",", ":"))

    @property
    def mode(self) -> str:
        """What the client is doing."""
        return str(self.fields["consumption_mode"])

    @property
    def scn(self) -> int:
        """The SCN of the current window."""
        return int(self.fields["windowScn"])

    # Online

    @property
    def is_inside(self) -> bool:
        """Whether the current window has been read in part."""
        return self.mode == ONLINE and int(self.fields["windowOffset"]) > 0

    def read(self, event: StockEvent) -> None:
        """Move behind an event of a relay's stream."""
        fields = self.fields
        if event.is_end_of_period:
            fields |= {"windowScn": event.scn, "prevScn": event.scn, "windowOffset": WHOLE_WINDOW}
            fields["tsNsecs"] = event.timestamp_ns
        elif fields["windowScn"] == event.scn:
            fields["windowOffset"] += 1
        else:
            fields |= {"windowScn": event.scn, "windowOffset": 1}

    def regress(self) -> None:
        """Go back to the last whole window; raises StockRefusalError if there is none."""
        if self.fields["windowOffset"] <= 0:
            return
        if self.fields["prevScn"] <= 0:
            raise StockRefusalError("suspended: half of its first window, and no SCN before it")
        self.fields |= {"windowScn": self.fields["prevScn"], "windowOffset": WHOLE_WINDOW}

    # Bootstrap

    def begin_bootstrap(self, sources: Sequence[str]) -> None:
        """Begin the snapshot of the first source."""
        self.fields |= {
            "consumption_mode": SNAPSHOT,
            "bootstrap_since_scn": self.scn,
            "bootstrap_start_scn": -1,
            "bootstrap_target_scn": -1,
            "bootstrap_server_info": None,
            "bootstrap_snapshot_source_index": 0,
            "bootstrap_catchup_source_index": 0,
            "snapshot_source": sources[0],
            "catchup_source": sources[0],
            "snapshot_offset": 0,
            "windowOffset": WHOLE_WINDOW,
        }

    @property
    def is_phase_over(self) -> bool:
        """Whether the current snapshot, or the catch-up of the current source, is over."""
        key = "snapshot_offset" if self.mode == SNAPSHOT else "windowOffset"
        return bool(self.fields[key] == -1)

    @property
    def source(self) -> str:
        """The source that is read."""
        return str(self.fields["snapshot_source" if self.mode == SNAPSHOT else "catchup_source"])

    def read_page(self, events: Sequence[StockEvent], *, is_over: bool) -> None:
        """Move behind a page; raises StockRefusalError if it does not say where that is."""
        if events:
            if events[-1].src_id != CHECKPOINT:
                raise StockRefusalError("a page without a checkpoint at its end is read for ever")
            said = json.loads(events[-1].value)
            keys = ("snapshot_offset",) if self.mode == SNAPSHOT else ("windowScn", "windowOffset")
            # A key that is not there is -1 to the Java class.
            self.fields |= {key: int(said.get(key, -1)) for key in keys}
        if is_over:
            self.fields["snapshot_offset" if self.mode == SNAPSHOT else "windowOffset"] = -1

    def take_target(self, scn: int, sources: Sequence[str]) -> None:
        """Begin the catch-up of all sources up to the one whose snapshot is over."""
        start, index = self.fields["bootstrap_start_scn"], self._next("snapshot", sources)
        if scn < start:
            raise StockRefusalError(f"target SCN {scn} below start SCN {start}")
        assert index <= len(sources)
        self.fields |= {"bootstrap_target_scn": scn, "bootstrap_catchup_source_index": -1}
        self._begin_catch_up(sources)

    def end_catch_up(self, sources: Sequence[str]) -> bool:
        """Go on with the next catch-up or snapshot; False when the bootstrap is over."""
        fields = self.fields
        reached = fields["bootstrap_snapshot_source_index"]
        if fields["bootstrap_catchup_source_index"] + 1 < reached:
            self._begin_catch_up(sources)
            return True
        if reached < len(sources):
            fields |= {
                "consumption_mode": SNAPSHOT,
                "snapshot_offset": 0,
                "bootstrap_catchup_source_index": 0,
                "catchup_source": sources[0],
            }
            return True
        target = fields["bootstrap_target_scn"]
        fields |= {
            "consumption_mode": ONLINE,
            "windowScn": target,
            "prevScn": target,
            "windowOffset": WHOLE_WINDOW,
            "bootstrap_since_scn": -1,
            "bootstrap_start_scn": -1,
            "bootstrap_target_scn": -1,
            "bootstrap_server_info": None,
            "bootstrap_snapshot_source_index": 0,
            "bootstrap_catchup_source_index": 0,
        }
        return False

    def _begin_catch_up(self, sources: Sequence[str]) -> None:
        self._next("catchup", sources)
        self.fields |= {
            "consumption_mode": CATCH_UP,
            "windowScn": self.fields["bootstrap_start_scn"],
            "windowOffset": 0,
        }

    def _next(self, phase: str, sources: Sequence[str]) -> int:
        key = f"bootstrap_{phase}_source_index"
        index = int(self.fields[key]) + 1
        name = sources[index] if index < len(sources) else ""
        self.fields |= {key: index, f"{phase}_source": name}
        return index
