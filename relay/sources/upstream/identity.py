"""Whether another relay is one of the source that is followed. Pure.

Its windows are taken over as they are, so everything that their bytes refer to must be the same:
names and ids of the sources, schemas, and the servers of the epochs. Whether the windows are the
same is proved by one that was taken over: see `windows.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from operator import attrgetter
from secrets import token_hex

from databus.relay.sources.epochs import Epoch
from databus.relay.sources.source import SourceSchema

# Of this process: two relays that read each other would both look well, and nothing would come.
RELAY_ID = token_hex(8)


def sources_problem(own: Mapping[str, int], theirs: Mapping[str, int]) -> str:
    """Return how the sources of the two relays differ; "" if they are the same."""
    if more := sorted(theirs.keys() - own.keys()):
        return (
            f"it also has {', '.join(more)}: list every source that it has, so that windows and "
            "positions inside them are the same"
        )
    if missing := sorted(own.keys() - theirs.keys()):
        return f"it has no source {', '.join(missing)}: list only what it has"
    for name, src_id in own.items():
        if theirs[name] != src_id:
            return (
                f"source {name} has id {theirs[name]} there and {src_id} here, and an id never "
                "changes: use a new data_dir for this relay, which takes the ids over"
            )
    return ""


def epochs_problem(own: Sequence[Epoch], theirs: Sequence[Epoch]) -> str:
    """Return which epoch has two servers; "" if none has."""
    servers = {epoch.number: epoch.server for epoch in own}
    for epoch in theirs:
        server = servers.get(epoch.number, epoch.server)
        if server != epoch.server:
            return f"its epoch {epoch.number} is server {epoch.server}, and here it is {server}"
    return ""


def merged_epochs(own: Sequence[Epoch], theirs: Sequence[Epoch], most: int) -> list[Epoch]:
    """Return the own epochs, and those of another relay up to a number that are not among them."""
    known = {epoch.number for epoch in own}
    found = [*own, *(one for one in theirs if one.number not in known and one.number <= most)]
    return sorted(found, key=attrgetter("number"))


def schemas_problem(
    own: Mapping[str, Sequence[SourceSchema]], theirs: Sequence[SourceSchema], scn: int
) -> str:
    """Return which schema of the newest windows here, up to `scn`, it does not have; or ""."""
    for name, versions in own.items():
        listed = [version for version in theirs if version.source == name]
        count = bisect_right(listed, scn, key=attrgetter("start_scn"))
        if not versions or not count:
            continue
        in_force = listed[count - 1].schema_id
        if in_force not in {version.schema_id for version in versions}:
            return f"at scn {scn} it has another schema of {name} than this relay"
    return ""


def versions_to_add(
    own: Mapping[str, Sequence[SourceSchema]], theirs: Sequence[SourceSchema]
) -> list[SourceSchema]:
    """Return the versions that come after all that is known of their source."""
    return [
        version
        for version in theirs
        if version.source in own and not _is_known(version, own[version.source])
    ]


def _is_known(version: SourceSchema, own: Sequence[SourceSchema]) -> bool:
    if not own or version.start_scn > own[-1].start_scn:
        return False
    # Two versions of one SCN: a table that was altered twice between two windows.
    is_of_newest = version.start_scn == own[-1].start_scn
    known = {one.schema_id for one in own}
    return not is_of_newest or version.schema_id in known
