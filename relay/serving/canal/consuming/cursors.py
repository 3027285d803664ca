"""Cursors: where a client of a destination goes on, as they are kept. Pure.

A cursor is a JSON object. It names its destination and client, the client's filter, and for each
physical source a checkpoint, as clients of this project have it: with the SCN, and with a window
whose rows were acknowledged, by which another log is recognised.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from databus.relay.ring.event_selector import WINDOW_DONE
from databus.relay.serving.canal.consuming.batches import Place
from databus.relay.serving.canal.protocol.errors import BAD_REQUEST, CanalError
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode
from databus.schemas.errors import CheckpointError

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where client `client_id` of a destination goes on, by physical source."""

    destination: str
    client_id: int
    filter_text: str
    checkpoints: Mapping[str, Checkpoint]

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON value."""
        return {
            "version": _VERSION,
            "destination": self.destination,
            "clientId": self.client_id,
            "filter": self.filter_text,
            "sources": {
                name: json.loads(one.to_json()) for name, one in sorted(self.checkpoints.items())
            },
        }

    @classmethod
    def from_json(cls, value: Any, destination: str, client_id: int, where: str) -> Cursor:
        """Read the cursor of a client; raises CanalError for what is not its cursor."""
        try:
            named = value["destination"], value["clientId"]
            if value["version"] != _VERSION or named != (destination, client_id):
                raise ValueError(f"it is of version {value['version']}, for {named}")
            checkpoints = {
                name: Checkpoint.from_json(json.dumps(one))
                for name, one in value["sources"].items()
            }
            return cls(destination, client_id, str(value["filter"]), checkpoints)
        except (KeyError, TypeError, AttributeError, ValueError, CheckpointError) as error:
            raise unreadable(where, repr(error)) from error


def unreadable(where: str, problem: str) -> CanalError:
    """Return the error for a cursor that cannot be read."""
    return CanalError(
        BAD_REQUEST,
        f"the cursor {where} cannot be used: {problem}. Put back a copy of it; or remove it, and "
        "the client begins anew, with the oldest change that is held",
    )


def checkpoint_of(place: Place, mark: tuple[int, int] | None, ts_ns: int = -1) -> Checkpoint:
    """Return what is kept of a place: whole windows. `ts_ns` is that of its window, if known."""
    scn, offset = place.settled
    if offset == WINDOW_DONE:
        return Checkpoint.at(scn, ts_ns).with_mark(mark)
    return Checkpoint(ConsumptionMode.ONLINE, scn, 0).with_mark(mark)


def place_of(checkpoint: Checkpoint) -> Place:
    """Return the place of a kept checkpoint."""
    offset = WINDOW_DONE if checkpoint.is_whole_window else 0
    return Place((checkpoint.window_scn, offset), rows_scn=checkpoint.mark_scn)
