"""`databus group`: show, move and resize the groups whose processes share rows."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from databus.cli.api_client import ApiClient, access_options, named_server
from databus.client.checkpoints.fenced import RecordCheckpoints
from databus.client.cli.checkpoint import range_in, ranges_of
from databus.client.machines.position import parse_start
from databus.client.membership.halted import HaltedGroup, halted
from databus.conf.units import duration_text
from databus.groups.group_record import GroupRecord
from databus.groups.moves import DAY_S, GroupMoves, ranges_text, read_moves
from databus.groups.names import all_groups, consumed_scn
from databus.groups.reading import PartitionState, read_group, read_partitions
from databus.leases.places import open_records
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import SettingsError
from databus.schemas.filters import MAX_PARTITIONS
from databus.servers.places import open_directory

_MOVES_SHOWN = 10
_coordinator = click.option(
    "--coordinator",
    required=True,
    metavar="URL",
    help="Where the group meets: file:FOLDER (a client's checkpoint_dir), zookeeper://… or a URL "
    "of SQLAlchemy.",
)
_json = click.option("--json", "is_json", is_flag=True, help="Print JSON.")


@click.group()
def group() -> None:
    """Show, move and resize groups of processes that share rows.

    Example: `databus group list --coordinator file:checkpoints`
    """


@group.command("list")
@_coordinator
@_json
def list_groups(coordinator: str, is_json: bool) -> None:
    """List the groups that meet at a coordinator.

    Example: `databus group list --coordinator zookeeper://127.0.0.1:2181/databus`
    """
    with closing(open_records(coordinator)) as records:
        found = [read_group(records, name) for name in all_groups(records)]
    if is_json:
        click.echo(json.dumps([_summary(record) for record in found]))
        return
    if not found:
        click.echo(f"no group meets at {coordinator.partition('@')[2] or coordinator}")
        return
    table = Table("group", "sources", "partitions", "processes", "")
    for record in found:
        facts = record.facts
        sources = ", ".join(facts.sources)
        counts = str(facts.partitions), str(len(record.members))
        table.add_row(escape(facts.group), escape(sources), *counts, escape(_state(record)))
    Console().print(table)


@group.command()
@click.argument("name")
@_coordinator
@_json
def show(name: str, coordinator: str, is_json: bool) -> None:
    """Show who owns each partition of group NAME, and where it is; and the moves of the last day.

    A process that was killed is shown until others have noticed.

    Example: `databus group show billing --coordinator file:checkpoints`
    """
    with closing(open_records(coordinator)) as records:
        record = read_group(records, name)
        states, moves = list(read_partitions(records, record)), read_moves(records, name)
    if is_json:
        rows = [_row(one) for one in states]
        click.echo(json.dumps(_summary(record) | {"positions": rows, "moves": _moves(moves)}))
        return
    titles = ("partition", "owner", "term", "scn", "committed")
    table = Table(*titles, title=escape(f"{name} {_state(record)}"))
    for one in states:
        scn = "-" if one.scn is None else str(one.scn)
        committed = one.problem or _committed(one.checkpoint)
        table.add_row(str(one.partition), *map(escape, (_owner(one), _term(one), scn, committed)))
    Console().print(table)
    _print_moves(Console(), moves)


@group.command()
@click.argument("name")
@click.argument("partitions", type=click.IntRange(1, MAX_PARTITIONS))
@_coordinator
def resize(name: str, partitions: int, coordinator: str) -> None:
    """Give group NAME another number of PARTITIONS, while its processes run.

    They finish what they have, and go on within seconds. No row comes twice
    because of it, and none is left out.

    Example: `databus group resize billing 48 --coordinator file:checkpoints`
    """
    with _halted(coordinator, name, "resized") as stopped:
        stopped.resize(partitions)
    click.echo(f"{name} has {partitions} partitions")


@group.command()
@click.argument("name")
@click.option(
    "--to",
    "place",
    required=True,
    help="earliest, beginning (of the tables, from a bootstrap server), or the SCN to go on after.",
)
@_coordinator
@click.option("--relay", help="URL of a relay, which says what the newest window is.")
@access_options
def reset(
    name: str,
    place: str,
    coordinator: str,
    relay: str | None,
    token_file: Path | None,
    tls_ca: Path | None,
) -> None:
    """Move all partitions of group NAME to one position, while its processes run.

    Rows that were consumed come again if it is further back. Rows in between
    are left out if it is ahead. An SCN after the newest window is refused, by
    what the relay says, or else the relays that the coordinator lists.

    Example: `databus group reset billing --to earliest --coordinator file:checkpoints`
    """
    position = parse_start(place)
    if position.is_latest or position.place is not None:
        raise SettingsError(
            f"--to {place}: give an SCN, earliest or beginning; a relay finds the SCN of a time or "
            "transaction: GET /api/v1/sources/ID/position?at=…"
        )
    if not position.checkpoint.is_flexible and position.scn >= 0:
        server = None if relay is None else named_server(relay, token_file, tls_ca)
        _check_reached(name, position.scn, coordinator, server)
    with _halted(coordinator, name, "moved") as stopped:
        stopped.move(position.checkpoint)
    click.echo(f"{name} goes on at {place}")


def _check_reached(name: str, scn: int, coordinator: str, server: ApiClient | None) -> None:
    """Raise SettingsError if no window has this SCN yet: rows that come would be left out."""
    with closing(open_records(coordinator)) as records:
        record = read_group(records, name)
        consumed = max(consumed_scn(one.checkpoint) for one in read_partitions(records, record))
    sources = record.facts.sources
    if server is not None:
        newest = range_in(sources, ranges_of(server)).max_scn
    else:
        newest = _newest_listed(coordinator, sources)
    if newest < 0 and scn > consumed:
        raise SettingsError(
            f"--to {scn}: group {name!r} has consumed windows up to {consumed}, and no relay is "
            "listed there that knows a newer one: give --relay URL, so that no rows are left out "
            "that are still to come"
        )
    if 0 <= newest < scn:
        raise SettingsError(
            f"--to {scn}: the newest window is {newest}, so rows that are still to come would be "
            f"left out; --to {newest} leaves out all that there are"
        )


def _newest_listed(coordinator: str, sources: Sequence[str]) -> int:
    with closing(open_directory(coordinator)) as directory:
        held = [
            one
            for entry in directory.entries()
            if entry.kind == "relay"
            for one in entry.physical_sources.values()
        ]
    return max((one.newest_scn for one in held if set(sources) <= set(one.sources)), default=-1)


@contextmanager
def _halted(coordinator: str, name: str, why: str) -> Iterator[HaltedGroup]:
    with closing(open_records(coordinator)) as records, Progress(transient=True) as progress:
        task = progress.add_task("waiting for the owners of partitions", total=None)

        def note(free: int, total: int) -> None:
            progress.update(task, completed=free, total=total)

        checkpoints = RecordCheckpoints(records)
        with halted(records, checkpoints, name, why, note, time.sleep) as stopped:
            yield stopped


def _row(state: PartitionState) -> dict[str, Any]:
    return {
        "partition": state.partition,
        "process": state.assigned,
        "owner": state.owner,
        "term": state.term,
        "takenAt": state.taken_at,
        "scn": state.scn,
        "committed": _committed(state.checkpoint),
        "problem": state.problem,
    }


def _owner(state: PartitionState) -> str:
    """Return who owns a partition, and who is to own it if that is another one."""
    owner = state.owner or "-"
    return owner if state.assigned in (None, state.owner) else f"{owner}, then {state.assigned}"


def _term(state: PartitionState) -> str:
    if state.owner is None or state.taken_at is None:
        return str(state.term or "-")
    return f"{state.term}, for {duration_text(max(0.0, time.time() - state.taken_at))}"


def _moves(moves: GroupMoves | None) -> list[dict[str, Any]]:
    found = () if moves is None else moves.within(time.time() - DAY_S)
    return [
        {"at": one.at_s, "from": one.former, "to": one.owner, "partitions": list(one.partitions)}
        for one in found
    ]


def _print_moves(console: Console, moves: GroupMoves | None) -> None:
    found = () if moves is None else moves.within(time.time() - DAY_S)
    if found:
        console.print(f"{len(found)} moves within a day, the newest first")
    for one in reversed(found[-_MOVES_SHOWN:]):
        at = datetime.fromtimestamp(one.at_s)
        numbers = ranges_text(one.partitions)
        console.print(
            f"{at:%H:%M:%S} {one.former or 'nobody'} → {one.owner}: {numbers}", markup=False
        )


def _committed(checkpoint: Checkpoint | None) -> str:
    if checkpoint is None:
        return "not begun"
    if checkpoint.is_bootstrap:
        return "in a bootstrap"
    if checkpoint.ts_ns < 0:
        return "unknown"
    return f"{duration_text(max(0.0, time.time() - checkpoint.ts_ns / 1e9))} ago"


def _summary(record: GroupRecord) -> dict[str, Any]:
    return {
        "group": record.facts.group,
        "sources": list(record.facts.sources),
        "partitions": record.facts.partitions,
        "partition_by": list(record.facts.partition_by),
        "generation": record.facts.generation,
        "processes": sorted(one.process for one in record.members.values()),
        "halted": record.halted,
    }


def _state(record: GroupRecord) -> str:
    if record.halted:
        return f"halted: {record.halted}"
    return "" if record.members else "no process runs"
