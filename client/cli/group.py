"""`databus group`: show, move and resize the groups whose processes share rows."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from databus.client.checkpoints.fenced import RecordCheckpoints
from databus.client.group.group_record import GroupRecord
from databus.client.machines.position import parse_start
from databus.client.membership.halted import HaltedGroup, halted, read_group
from databus.client.membership.kept_generation import begin_of, read_generation
from databus.client.membership.membership import all_groups
from databus.client.membership.partition_checkpoints import checkpoint_name, consumed_scn
from databus.conf.units import duration_text
from databus.leases.places import open_records
from databus.leases.records import Records
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import SettingsError
from databus.schemas.filters import MAX_PARTITIONS

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
        table.add_row(facts.group, sources, *counts, _state(record))
    Console().print(table)


@group.command()
@click.argument("name")
@_coordinator
@_json
def show(name: str, coordinator: str, is_json: bool) -> None:
    """Show who is to own each partition of group NAME, and where it is.

    Example: `databus group show billing --coordinator file:checkpoints`
    """
    with closing(open_records(coordinator)) as records:
        record = read_group(records, name)
        rows = _rows(record, _positions(records, record))
    if is_json:
        click.echo(json.dumps(_summary(record) | {"positions": rows}))
        return
    table = Table("partition", "process", "scn", "committed", title=f"{name} {_state(record)}")
    for one in rows:
        scn = "-" if one["scn"] is None else str(one["scn"])
        table.add_row(str(one["partition"]), one["process"] or "-", scn, one["committed"])
    Console().print(table)


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
def reset(name: str, place: str, coordinator: str) -> None:
    """Move all partitions of group NAME to one position, while its processes run.

    Rows that were consumed come again if it is further back. Rows in between
    are left out if it is ahead.

    Example: `databus group reset billing --to earliest --coordinator file:checkpoints`
    """
    position = parse_start(place)
    if position.is_latest or position.place is not None:
        raise SettingsError(
            f"--to {place}: give an SCN, earliest or beginning; a relay finds the SCN of a time or "
            "transaction: GET /api/v1/sources/ID/position?at=…"
        )
    with _halted(coordinator, name, "moved") as stopped:
        stopped.move(position.checkpoint)
    click.echo(f"{name} goes on at {place}")


@contextmanager
def _halted(coordinator: str, name: str, why: str) -> Iterator[HaltedGroup]:
    with closing(open_records(coordinator)) as records, Progress(transient=True) as progress:
        task = progress.add_task("waiting for the owners of partitions", total=None)

        def note(free: int, total: int) -> None:
            progress.update(task, completed=free, total=total)

        checkpoints = RecordCheckpoints(records)
        with halted(records, checkpoints, name, why, note, time.sleep) as stopped:
            yield stopped


def _positions(records: Records, record: GroupRecord) -> dict[int, Checkpoint | None]:
    facts = record.facts
    kept = read_generation(records, facts.group, facts.generation)
    store = RecordCheckpoints(records)
    found = {}
    for partition in range(facts.partitions):
        name = checkpoint_name(facts.group, facts.generation, partition)
        at = store.load(name, facts.sources)
        found[partition] = at or begin_of(kept, partition)
    return found


def _rows(record: GroupRecord, positions: dict[int, Checkpoint | None]) -> list[dict[str, Any]]:
    return [
        {
            "partition": partition,
            "process": _process(record, partition),
            "scn": None if consumed_scn(at) < 0 else consumed_scn(at),
            "committed": _committed(at),
        }
        for partition, at in positions.items()
    ]


def _process(record: GroupRecord, partition: int) -> str | None:
    owner = record.owners.get(partition)
    return None if owner is None else record.members[owner].process


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
