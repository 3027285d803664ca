"""Where the partitions of a resized group begin, and what former partitions had consumed.

    generations/NAME/NUMBER    {"group": …, "generation": 2, "scns": […], "former": [[…], …],
                                "checkpoints": {"SCN": {…}, …}, "crc": …}

`checkpoints` has the checkpoint at each of `scns`, which proves to a server that its log is the
same. A group that was never resized has no such record. Each generation has a record of its own:
which one counts is said by the group's record alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from databus.groups.generations import NOTHING, Generation
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


def begin_of(kept: KeptGeneration | None, partition: int) -> Checkpoint | None:
    """Return where a partition begins, in a first generation (None), too."""
    return None if kept is None else kept.begins(partition)


def generation_record(group: str, number: int) -> str:
    """Return the name of a group's record of a generation."""
    return f"generations/{record_name(group, group)}/{number}"


def read_generation(records: Records, group: str, number: int) -> KeptGeneration | None:
    """Return the generation of a group; None for the first one. Raises LeaseError."""
    if number == 0:
        return None
    name = generation_record(group, number)
    stored = records.read(name)
    if stored is None:
        raise LeaseError(
            f"{records.shown} has no record {name}, so it is not known where the partitions of "
            f"group {group!r} begin: restore it from a copy"
        )
    return _decode(stored.data, group, number, records.shown)


def write_generation(records: Records, group: str, kept: KeptGeneration) -> None:
    """Write the generation of a group. Raises LeaseError."""
    encoded = _encode(kept, group)
    change(records, generation_record(group, kept.generation.number), lambda _: encoded)


def forget_former(records: Records, group: str, number: int) -> None:
    """Forget what former partitions had consumed, for a bootstrap delivers it again."""

    def forgotten(data: bytes | None) -> bytes:
        assert data is not None
        kept = _decode(data, group, number, records.shown)
        return _encode(replace(kept, generation=replace(kept.generation, former=())), group)

    if number > 0:
        change(records, generation_record(group, number), forgotten)


def _encode(kept: KeptGeneration, group: str) -> bytes:
    checkpoints = {str(scn): json.loads(at.to_json()) for scn, at in kept.checkpoints.items()}
    values = {"group": group, **kept.generation.to_json_value(), "checkpoints": checkpoints}
    return encode_checked(values)


def _decode(data: bytes, group: str, number: int, store: str) -> KeptGeneration:
    try:
        values = decode_checked(data)
        generation = Generation.from_json_value(values)
        if (values.get("group"), generation.number) != (group, number):
            raise ValueError(f"it is that of {values.get('group')!r}, {generation.number}")
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
