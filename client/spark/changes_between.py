"""`spark.read` with `mode=changes`: every change between two SCNs, once, as a DataFrame."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from databus.client.spark.change_stream import make_planner
from databus.client.spark.offsets import AtScn, InSnapshot
from databus.client.spark.options import SourceOptions, parse_options
from databus.client.spark.planner import Planner
from databus.client.spark.ranges import range_to_text
from databus.schemas.errors import SettingsError


def ranges_of_changes(options: Mapping[str, str]) -> list[str]:
    """Return the ranges, as texts, of the changes after one SCN and up to another.

    Raises SettingsError when they are not all held any more; DatabusError.
    """
    parsed = parse_options(options)
    if parsed.after is None:
        raise SettingsError("option after is missing: the SCN after which changes are wanted")
    with contextlib.closing(make_planner(parsed)) as planner:
        return _ranges(planner, parsed, parsed.after)


def _ranges(planner: Planner, options: SourceOptions, after: int) -> list[str]:
    if len(planner.by_physical) > 1:
        raise SettingsError(
            f"option after is an SCN, and the sources belong to {', '.join(planner.by_physical)}: "
            "read those of one physical source at a time"
        )
    (name,) = planner.by_physical
    until = planner.targets()[name] if options.until is None else options.until
    place = AtScn(after)
    found: list[str] = []
    while place.scn < until:
        further = planner.next_places({name: place}, options.max_rows_per_trigger, {name: until})
        end = further[name]
        if isinstance(end, InSnapshot):
            raise SettingsError(
                f"{name}: the changes after scn {place.scn} are not held any more; the table as "
                "it is can be had with mode=table"
            )
        if end == place:
            raise SettingsError(f"{name}: scn {until} has not come yet, the newest is {place.scn}")
        found += [range_to_text(one) for one in planner.ranges(name, place, end)]
        place = end
    return found
