"""Where the partitions of a resized group begin, and what former partitions had consumed.

    generations/NAME    {"group": …, "generation": 2, "scns": […], "former": [[…], …],
                         "checkpoints": {"SCN": {…}, …}, "crc": …}

`checkpoints` has the checkpoint at each of `scns`, which proves to a server that its log is the
same. A group that was never resized has no such record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from databus.client.group.generations import NOTHING, Generation
from databus.leases.checked_json import decode_checked, encode_checked
from databus.leases.errors import LeaseError
from databus.leases.records import Records, change, record_name
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class KeptGeneration:
    """A generation, and the checkpoints at which its partitions begin, by their SCN."""

    generation: Generation
    checkpoints: Mapping[int, Checkpoint] = field(default_factory=dict)

    def begins(self, partition: int) -> Checkpoint | None:
        """Return the checkpoint at which a partition begins; None = at the `start` setting."""
        scn = self.generation.checkpoints.scns[partition]
        return None if scn == NOTHING else self.checkpoints[scn]


def generation_record(group: str) -> str:
    """Return the name of a group's record of its generation."""
    return f"generations/{record_name(group, group)}"


def read_generation(records: Records, group: str, number: int) -> KeptGeneration | None:
    """Return the generation of a group; None for the first one. Raises LeaseError."""
    if number == 0:
        return None
    stored = records.read(generation_record(group))
    if stored is None:
        raise LeaseError(
            f"{records.shown} has no record {generation_record(group)}, so it is not known where "
            f"the partitions of group {group!r} begin: restore it from a copy"
        )
    kept = _decode(stored.data, group, records.shown)
    if kept.generation.number != number:
        raise LeaseError(
            f"group {group!r} is in generation {number}, and its record in {records.shown} of "
            f"generation {kept.generation.number}: restore both from one copy"
        )
    return kept


def write_generation(records: Records, group: str, kept: KeptGeneration) -> None:
    """Write the generation of a group. Raises LeaseError."""
    encoded = _encode(kept, group)
    change(records, generation_record(group), lambda _: encoded)


def forget_former(records: Records, group: str, number: int) -> None:
    """Forget what former partitions had consumed, for a bootstrap delivers it again."""

    def forgotten(data: bytes | None) -> bytes:
        assert data is not None
        kept = _decode(data, group, records.shown)
        return _encode(replace(kept, generation=replace(kept.generation, former=())), group)

    if number > 0:
        change(records, generation_record(group), forgotten)


def _encode(kept: KeptGeneration, group: str) -> bytes:
    checkpoints = {str(scn): json.loads(at.to_json()) for scn, at in kept.checkpoints.items()}
    values = {"group": group, **kept.generation.to_json_value(), "checkpoints": checkpoints}
    return encode_checked(values)


def _decode(data: bytes, group: str, store: str) -> KeptGeneration:
    try:
        values = decode_checked(data)
        if values.get("group") != group:
            raise ValueError(f"it is the record of {values.get('group')!r}")
        generation = Generation.from_json_value(values)
        checkpoints = {
            int(scn): Checkpoint.from_json(json.dumps(at))
            for scn, at in values["checkpoints"].items()
        }
        if not set(generation.checkpoints.scns) <= {NOTHING, *checkpoints}:
            raise ValueError("a checkpoint is missing")
    except (ValueError, TypeError, KeyError, AttributeError, CheckpointError) as error:
        raise LeaseError(
            f"where the partitions of group {group!r} begin cannot be read in {store}: {error}; "
            "restore the record from a copy"
        ) from error
    return KeptGeneration(generation, checkpoints)
