"""A stored checkpoint: whose it is, the checkpoint, the term it was written under, a checksum.

The same JSON in files and in other stores; docs/formats/checkpoint.md describes it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple
from zlib import crc32

from databus.leases.records import record_name
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import CheckpointError

log = logging.getLogger(__name__)

_PARTS = ("registration", "sources", "checkpoint")
_TERM = "term"
_PLACE = ("windowScn", "windowOffset")  # in every checkpoint of every version


class Kept(NamedTuple):
    """The content of a stored checkpoint: name, sources and checkpoint of a registration.

    `term` is the greatest under which it was written, None if it never was under a lease.
    `checkpoint` is None if an owner has begun a term, but not saved a checkpoint yet.
    """

    name: str
    sources: tuple[str, ...]
    checkpoint: Checkpoint | None
    term: int | None = None


def kept_name(name: str, sources: Sequence[str]) -> str:
    """Return the name under which a registration's checkpoint is stored, without a suffix."""
    return record_name(name, json.dumps([name, list(sources)]))


def encode_kept(kept: Kept) -> bytes:
    """Return the JSON of a stored checkpoint."""
    at = kept.checkpoint
    values: dict[str, Any] = {
        "registration": kept.name,
        "sources": list(kept.sources),
        "checkpoint": None if at is None else json.loads(at.to_json()),
    }
    if kept.term is not None:
        values[_TERM] = kept.term
    # Over the parsed values, so that a file reformatted by hand stays valid.
    values["crc"] = _checksum(values)
    return (json.dumps(values, indent=1) + "\n").encode()


def decode_kept(data: bytes, place: str) -> Kept:
    """Read a stored checkpoint; raise CheckpointError, with its place, if it is damaged."""
    try:
        values = json.loads(data.decode("utf-8"))
        _check_whole(place, values)
        at = values["checkpoint"]
        return Kept(
            str(values["registration"]),
            tuple(map(str, values["sources"])),
            None if at is None else Checkpoint.from_json(json.dumps(at)),
            values.get(_TERM),
        )
    except (ValueError, TypeError, KeyError, RecursionError, CheckpointError) as error:
        raise damaged(place, error) from error


def check_owner(kept: Kept, name: str, sources: Sequence[str], place: str) -> None:
    """Raise CheckpointError if it is another registration's: it was copied to that place."""
    if (kept.name, list(kept.sources)) != (name, list(sources)):
        owner = f"it is the checkpoint of {kept.name!r}, sources {list(kept.sources)!r}"
        raise damaged(place, ValueError(owner))


def check_no_term(kept: Kept, place: str) -> None:
    """Raise CheckpointError if the checkpoint is written under leases: then only owners write it.

    A writer without a lease cannot know whether there is an owner now.
    """
    if kept.term is not None:
        raise CheckpointError(
            f"checkpoint {place} is written under a lease, term {kept.term}, and this client has "
            "none: use another `name`, or read as a member of its group. Once no member runs, and "
            "none is to run again, remove it and write its position with `databus checkpoint set`"
        )


def damaged(place: str, error: Exception) -> CheckpointError:
    """Return the error of a stored checkpoint that cannot be read."""
    return CheckpointError(
        f"checkpoint {place} cannot be read: {error}; restore it from a copy, or remove it to "
        "start from the `start` setting, which may skip or repeat changes; once it is removed, "
        "`databus checkpoint set` with --name and --source writes a position"
    )


def _check_whole(place: str, values: dict[str, Any]) -> None:
    """Raise ValueError if it is not as it was written."""
    # A damaged key looks like an unknown one, so unknown keys are errors.
    if set(values) - {"crc", _TERM} != set(_PARTS):
        raise ValueError(f"it has {sorted(values)}, not {', '.join(_PARTS)} and crc")
    if "crc" in values:
        if values["crc"] != _checksum(values):
            raise ValueError("its checksum is wrong: it was damaged, or edited by hand")
        return
    if _TERM in values:
        raise ValueError("it has a term, but no checksum")
    if not all(key in values["checkpoint"] for key in _PLACE):
        raise ValueError(f"its checkpoint lacks {' or '.join(_PLACE)}")
    log.info("checkpoint %s has no checksum yet: the next save adds one", place)


def _checksum(values: dict[str, Any]) -> str:
    parts = [values[part] for part in _PARTS]
    if _TERM in values:
        parts.append(values[_TERM])
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return f"{crc32(text.encode()):08x}"
