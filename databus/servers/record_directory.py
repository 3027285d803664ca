"""The list of servers in one record, for stores that cannot tell whether a process lives.

Each server writes its entry again and again. One whose entry has not changed while others looked
at it is listed no more, by the rule of leases: no clocks of two machines are compared.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from databus.leases.checked_json import decode_checked, encode_checked
from databus.leases.clock import StepCountingClock, steady_s
from databus.leases.errors import LeaseError
from databus.leases.expiry import Sighting, look_again, runs_out_in_s
from databus.leases.records import Records, change
from databus.servers.directory import SILENT_S
from databus.servers.entry import ServerEntry, entry_of

_NAME = "servers"


class RecordDirectory:
    """The list of servers in the record `servers` of a store of records."""

    def __init__(self, records: Records, clock_s: Callable[[], float] = steady_s) -> None:
        """Own the records from now on."""
        self.shown = records.shown
        self.poll_s = max(1.0, records.poll_s)
        self._records = records
        self._clock = StepCountingClock(clock_s)
        self._sightings: dict[str, Sighting] = {}
        self._beats = 0
        self._lock = threading.Lock()

    def put(self, entry: ServerEntry) -> None:
        """Write the entry of this process, and drop those of servers that are gone."""
        self._beats += 1
        written = entry.values() | {"beat": self._beats}

        def changed(data: bytes | None) -> bytes:
            there = self._living(self._decode(data))
            return encode_checked({"servers": there | {entry.instance: written}})

        change(self._records, _NAME, changed)

    def remove(self, instance: str) -> None:
        """Take the entry of this process out of the list."""

        def changed(data: bytes | None) -> bytes:
            there = self._decode(data)
            there.pop(instance, None)
            return encode_checked({"servers": there})

        change(self._records, _NAME, changed)

    def entries(self, on_change: Callable[..., None] | None = None) -> list[ServerEntry]:
        """Return the servers that are there."""
        stored = self._records.read(_NAME, on_change)
        there = self._living(self._decode(None if stored is None else stored.data))
        try:
            return [entry_of(values) for values in there.values()]
        except ValueError as error:
            raise self._unreadable(error) from error

    def close(self) -> None:
        """Close the records."""
        self._records.close()

    def _decode(self, data: bytes | None) -> dict[str, Any]:
        if data is None:
            return {}
        try:
            return dict(decode_checked(data)["servers"])
        except (ValueError, KeyError, TypeError) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> LeaseError:
        return LeaseError(
            f"the record {_NAME} in {self.shown} cannot be read: {error}; remove it, and "
            "the servers write it anew within seconds"
        )

    def _living(self, there: dict[str, Any]) -> dict[str, Any]:
        """Note what was seen; return the entries without those that have long been the same."""
        now = self._clock.read()
        with self._lock:
            self._sightings = {
                name: look_again(
                    self._sightings.get(name), json.dumps(values, sort_keys=True), now, SILENT_S
                )
                for name, values in there.items()
            }
            seen = self._sightings
        return {
            name: values
            for name, values in there.items()
            if runs_out_in_s(seen[name], SILENT_S) > 0
        }
