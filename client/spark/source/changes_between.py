"""`spark.read` with `mode=changes`: every change between two SCNs, once, as a DataFrame."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from databus.client.spark.options import SourceOptions, parse_options
from databus.client.spark.planning.measure_client import Measuring
from databus.client.spark.planning.offsets import AtScn, InSnapshot
from databus.client.spark.planning.partitions import TaskRanges
from databus.client.spark.planning.planner import Planner
from databus.client.spark.planning.ranges import range_to_text
from databus.client.spark.source.change_stream import make_measuring, tell_of_stopped
from databus.schemas.errors import SettingsError


def ranges_of_changes(options: Mapping[str, str]) -> list[str]:
    """Return the ranges, as texts, of the changes after one SCN and up to another.

    Raises SettingsError when they are not all held any more; DatabusError.
    """
    parsed = parse_options(options)
    if parsed.after is None:
        raise SettingsError("option after is missing: the SCN after which changes are wanted")
    with contextlib.closing(make_measuring(parsed)) as measuring:
        return _ranges(measuring, parsed, parsed.after)


def _ranges(measuring: Measuring, options: SourceOptions, after: int) -> list[str]:
    physical = measuring.by_physical
    if len(physical) > 1:
        raise SettingsError(
            f"option after is an SCN, and the sources belong to {', '.join(physical)}: "
            "read those of one physical source at a time"
        )
    (name,) = physical
    if options.until is None:
        measuring.await_opened()
    until = measuring.newest_scns()[name] if options.until is None else options.until
    if options.until is None:
        tell_of_stopped(options, measuring.stopped(), {name: AtScn(until)})
    planner, tasks = Planner(measuring, after), TaskRanges(measuring, options.shards)
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
        found += [range_to_text(one) for one in tasks.planned_now(name, place, end)]
        place = end
    return found
