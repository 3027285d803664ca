"""What the relay that captures leaves for the one after it, in the coordinator.

The ids of the sources, the epochs, and the GTIDs that were delivered. It is written under the term
of the lease: once another relay has begun to capture, the one before cannot write it any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from databus.leases.checked_json import decode_checked, encode_checked
from databus.leases.errors import LeaseError, StaleTermError, check_term
from databus.leases.records import Records, change, record_name
from databus.relay.sources.epochs import Epoch, Executed


@dataclass(frozen=True, slots=True)
class Handover:
    """The record. `executed` is None if what was delivered is not known.

    `owner` is the URL of the relay that has written it.
    """

    owner: str = ""
    ids: Mapping[str, int] = field(default_factory=dict)
    epochs: tuple[Epoch, ...] = ()
    executed: Executed | None = None

    def encode(self, term: int) -> bytes:
        """Return the record of a term."""
        values: dict[str, Any] = {
            "term": term,
            "owner": self.owner,
            "ids": dict(self.ids),
            "epochs": [asdict(epoch) for epoch in self.epochs],
            "executed": None if self.executed is None else self.executed._asdict(),
        }
        return encode_checked(values)


class HandoverRecord:
    """The record of one physical source. Thread-safe; raises LeaseError."""

    def __init__(self, records: Records, source: str) -> None:
        self._records, self._name = records, f"handover/{record_name(source, source)}"
        self._shown = f"{records.shown} {self._name}"

    def read(self) -> Handover | None:
        """Return what was left; None if no relay has captured yet."""
        stored = self._records.read(self._name)
        return None if stored is None else self._decode(stored.data)[0]

    def write(self, handover: Handover, term: int) -> None:
        """Leave it; raise StaleTermError, and change nothing, if that term is over.

        That is so if a greater one has begun, or if another relay has had this one: the store has
        lost the lease since, and begun to count anew.
        """

        def written(data: bytes | None) -> bytes:
            if data is not None:
                found, newest = self._decode(data)
                check_term(self._shown, term, newest)
                if newest == term and found.owner != handover.owner:
                    raise StaleTermError(self._shown, term, newest)
            return handover.encode(term)

        change(self._records, self._name, written)

    def _decode(self, data: bytes) -> tuple[Handover, int]:
        try:
            values = decode_checked(data)
            executed = values["executed"]
            found = Handover(
                str(values["owner"]),
                {str(name): int(src_id) for name, src_id in values["ids"].items()},
                tuple(Epoch(**epoch) for epoch in values["epochs"]),
                None if executed is None else Executed(int(executed["scn"]), executed["gtids"]),
            )
            return found, int(values["term"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LeaseError(
                f"record {self._shown} cannot be read: {error}. Stop all relays of this source, "
                "remove the record, and start the one that captured last: it writes it anew"
            ) from error
