"""`spark.read` with `mode=changes`: every change between two SCNs, exactly once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from databus.client.spark.options import SourceOptions, parse_options
from databus.client.spark.planning.archive_plan import archived_by_relay, archived_ranges
from databus.client.spark.planning.measure_client import MeasureClient
from databus.client.spark.planning.offsets import AtScn, Group, InSnapshot
from databus.client.spark.planning.partitions import PartitionPlanner
from databus.client.spark.planning.planner import Planner
from databus.client.spark.planning.ranges import ArchiveRange, range_to_text
from databus.client.spark.planning.server_pool import ServerPool
from databus.client.spark.source.change_stream import make_measure_client, report_stopped
from databus.conf.named_places import ScnPlace
from databus.schemas.errors import ReadAgainError, SettingsError


def ranges_of_changes(options: Mapping[str, str]) -> list[str]:
    """Return the ranges of the changes after one SCN and up to another, as texts; [] for none.

    Raises SettingsError if servers no longer hold all of them, and for SCNs that are in the
    future, or in the wrong order; DatabusError.
    """
    parsed = parse_options(options)
    if parsed.after is None:
        raise SettingsError("option after is missing: the SCN after which to read changes")
    if parsed.until is not None and parsed.until < parsed.after:
        raise SettingsError(
            f"option until = {parsed.until} is before option after = {parsed.after}: changes are "
            "read after the one and up to the other"
        )
    if parsed.archive is not None and not parsed.relays:
        return [range_to_text(one) for one in archived_ranges(parsed, parsed.after)]
    with contextlib.closing(make_measure_client(parsed)) as measure_client:
        return _ranges(measure_client, parsed, parsed.after)


def ends_of_changes(options: Mapping[str, str]) -> list[int]:
    """Return the SCNs where pieces of about `maxRowsPerTrigger` rows end, from `after` to `until`.

    Raises ReadAgainError if servers do not hold all of the changes; DatabusError.
    """
    parsed = parse_options(options)
    assert parsed.after is not None
    assert parsed.until is not None
    with contextlib.closing(make_measure_client(parsed)) as measure_client:
        planner = Planner(measure_client, ScnPlace(parsed.after))
        name = _group(measure_client).physical_source
        steps = _steps(planner, name, (parsed.after, parsed.until), parsed.max_rows_per_trigger)
        return [end.scn for _, end in steps]


def _group(measure_client: MeasureClient) -> Group:
    physical = measure_client.by_physical
    if len(physical) > 1:
        raise SettingsError(
            f"option after is an SCN of one physical source, but the sources belong to "
            f"{', '.join(physical)}: read the sources of each one separately"
        )
    ((name, sources),) = physical.items()
    return Group(name, sources)


def _ranges(measure_client: MeasureClient, options: SourceOptions, after: int) -> list[str]:
    group = _group(measure_client)
    name = group.physical_source
    if options.until is None:
        # A source that is being opened has no newest SCN yet.
        measure_client.await_opened()
    until = measure_client.newest_scns()[name] if options.until is None else options.until
    if until < after:
        raise _in_future(name, after, until)
    if options.until is None:
        report_stopped(options, measure_client.stopped(), {name: AtScn(until)})
    planner, tasks = (
        Planner(measure_client, ScnPlace(after)),
        PartitionPlanner(measure_client, options.shards),
    )
    found: list[str] = []
    if options.archive is not None:
        archived = _archived(options, group, after, until)
        found += map(range_to_text, archived)
        after = archived[-1].to_scn if archived else after
    for place, end in _steps(planner, name, (after, until), options.max_rows_per_trigger):
        found += [range_to_text(one) for one in tasks.planned_now(group, place, end)]
    return found


def _steps(
    planner: Planner, name: str, span: tuple[int, int], most_rows: int | None
) -> Iterator[tuple[AtScn, AtScn]]:
    """Yield the begin and the end of each part of a span of SCNs."""
    place, until = AtScn(span[0]), span[1]
    while place.scn < until:
        end = planner.next_places({name: place}, most_rows, {name: until})[name]
        if isinstance(end, InSnapshot):
            raise ReadAgainError(
                f"{name}: no server holds the changes after scn {place.scn} any more; read the "
                "current table with mode=table"
            )
        if end == place:
            raise _in_future(name, until, place.scn)
        yield place, end
        place = end


def _in_future(name: str, scn: int, newest: int) -> ReadAgainError:
    return ReadAgainError(f"{name}: scn {scn} is in the future, the newest is {newest}")


def _archived(options: SourceOptions, group: Group, after: int, until: int) -> list[ArchiveRange]:
    pool = ServerPool(options.relays, options.retry_seconds, options.access)
    with contextlib.closing(pool) as relays:
        return archived_by_relay(relays, group.physical_source, group.sources, after, until)
