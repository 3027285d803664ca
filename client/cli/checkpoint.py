"""`databus checkpoint`: show, set and compare the positions of consumers."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import click
from rich.console import Console
from rich.table import Table

from databus.cli.api_client import ApiClient, access_options, named_server
from databus.client.checkpoints.store import FileCheckpoints, save_in, take_lock
from databus.client.cli.checkpoint_lag import (
    Lag,
    RelayRange,
    consequences,
    distance_text,
    lag_of,
)
from databus.client.cli.checkpoint_listing import Shown, shown_at
from databus.client.machines.position import Position, parse_start
from databus.conf.named_places import NamedPlace
from databus.conf.units import duration_text
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import CheckpointError, ServerError, UnknownSourceError

PIPE_COLUMNS = 250
PARTITION = "0"


@click.group()
def checkpoint() -> None:
    """Show, set and compare the checkpoints of consumers.

    Example: `databus checkpoint show checkpoints --relay http://127.0.0.1:11115`
    """


@checkpoint.command()
@click.argument("place", type=click.Path(path_type=Path))
@click.option("--name", help="Only the registration of this name.")
@click.option("--relay", help="URL of a relay: also show the lag behind it.")
@access_options
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
def show(
    place: Path,
    name: str | None,
    relay: str | None,
    token_file: Path | None,
    tls_ca: Path | None,
    is_json: bool,
) -> None:
    """Show the checkpoint of each registration at PLACE.

    PLACE is a client's checkpoint folder or one file in it, or the checkpoint
    folder of a Spark query. A running registration is shown as of its last
    checkpoint, which is about `checkpoint_every_s` old at most.

    Example: `databus checkpoint show checkpoints --relay http://127.0.0.1:11115`
    """
    found = [one for one in shown_at(place) if name in (None, one.name)]
    if not found:
        raise CheckpointError(f"{place}: no registration is called {name!r}")
    ranges = None if relay is None else ranges_of(named_server(relay, token_file, tls_ca))
    lags = [None if ranges is None else lag_in(one, ranges) for one in found]
    if is_json:
        click.echo(json.dumps([to_json_value(*pair) for pair in zip(found, lags, strict=True)]))
        return
    _console().print(_table_of(found, lags))


@checkpoint.command("set")
@click.argument("place", type=click.Path(path_type=Path))
@click.argument("position")
@click.option("--name", help="The registration, if PLACE has several.")
@click.option(
    "--source",
    "sources",
    multiple=True,
    help="A source of a registration without a checkpoint, in its order; repeatable.",
)
@click.option(
    "--relay",
    help="URL of a relay with its sources; required for `latest`, `time:…`, `gtid:…`, `binlog:…`.",
)
@access_options
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def set_(
    place: Path,
    position: str,
    name: str | None,
    sources: tuple[str, ...],
    relay: str | None,
    token_file: Path | None,
    tls_ca: Path | None,
    yes: bool,
) -> None:
    """Move the checkpoint at PLACE to POSITION.

    POSITION is an SCN (of the last window that counts as consumed), earliest or beginning; with
    --relay also latest, a time (time:2026-11-21T10:00:00Z), a transaction (gtid:0-1-17) or the
    end of one in a binlog (binlog:mysql-bin.000012:4567). The client must not be running. The
    old checkpoint is kept beside the file, with the time in its name.

    Example: `databus checkpoint set checkpoints 4294967301 --name default
    --relay http://127.0.0.1:11115`
    """
    # Before the lock, so that a wrong position changes nothing.
    parse_start(position)
    folder, found = _registration(place, name, sources)
    store = FileCheckpoints(folder)
    # A running client would overwrite the new checkpoint with its next one.
    let_go = take_lock(store.path(found.name, found.sources).with_suffix(".lock"))
    try:
        # Read again: it may have changed before the lock was taken.
        path = store.path(found.name, found.sources)
        old = shown_at(path)[0] if path.exists() else found
        server = None if relay is None else named_server(relay, token_file, tls_ca)
        held = None if server is None else _range_of(old, ranges_of(server))
        new = _target(parse_start(position), old, server, held)
        _explain(old, new, position, held)
        if not yes:
            click.confirm("Move it?", abort=True)
        # The copy first: a crash in between leaves the old checkpoint in place.
        backup = _keep_copy(path)
        # A term stays: its owner, or the next one, goes on from here.
        save_in(store, found.name, found.sources, new, old.term)
    finally:
        let_go()
    click.echo(f"moved {path}" + (f"; the old checkpoint is {backup.name}" if backup else ""))


@checkpoint.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@access_options
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
def diff(a: str, b: str, token_file: Path | None, tls_ca: Path | None, is_json: bool) -> None:
    """Compare the checkpoints at A with those at B, or with a relay's newest window.

    A and B are folders or files; B may be the URL of a relay. Registrations are
    paired by name and sources; two single files are always paired.

    Example: `databus checkpoint diff checkpoints backup/checkpoints`, or
    `databus checkpoint diff checkpoints http://127.0.0.1:11115`
    """
    ours = shown_at(Path(a))
    if b.startswith(("http://", "https://")):
        ranges = ranges_of(named_server(b, token_file, tls_ca))
        pairs = [(one, lag_in(one, ranges).newest_scn) for one in ours]
        rows = [_difference(one.name, one.sources, one.scn, newest) for one, newest in pairs]
    else:
        rows = _paired(ours, shown_at(Path(b)))
    if is_json:
        click.echo(json.dumps(rows))
        return
    table = Table("registration", "sources", "A", "B", "", box=None, pad_edge=False)
    for row in rows:
        scns = (_scn_text(row["a"]), _scn_text(row["b"]))
        table.add_row(row["registration"], ", ".join(row["sources"]), *scns, row["text"])
    _console().print(table)


def ranges_of(server: ApiClient) -> list[RelayRange]:
    """Return the range of SCNs that a relay holds, by physical source; raise ServerError."""
    prev_scns = server.get_json("/relayCommand/getPrevScn")
    found = []
    try:
        for source in server.get_json("/physicalSources"):
            name = source["name"]
            held = server.get_json(f"/bufferInfo/inbound/{name}/{PARTITION}")
            found.append(
                RelayRange(
                    name,
                    tuple(one["name"] for one in source["sources"]),
                    int(held["minScn"]),
                    int(held["maxScn"]),
                    int(prev_scns[name]),
                    # The relay reports milliseconds.
                    int(held["timestampLatestEvent"]) * 1_000_000,
                )
            )
    except (KeyError, TypeError, ValueError) as error:
        raise ServerError(server.url, f"is not a relay of this project: {error!r}") from error
    return found


def range_in(
    sources: Sequence[str], ranges: Sequence[RelayRange], physical_source: str | None = None
) -> RelayRange:
    """Return the range that a relay holds for a registration; raise UnknownSourceError."""
    for held in ranges:
        if physical_source == held.physical_source or set(sources) <= set(held.sources):
            return held
    known = sorted(name for held in ranges for name in held.sources)
    missing = [name for name in sources if name not in known] or sources
    raise UnknownSourceError(missing[0], known)


def _range_of(one: Shown, ranges: Sequence[RelayRange]) -> RelayRange:
    return range_in(one.sources, ranges, one.physical_source)


def lag_in(one: Shown, ranges: Sequence[RelayRange]) -> Lag:
    """Return the lag of a registration; raise UnknownSourceError."""
    return lag_of(one.scn, one.time_ns, _range_of(one, ranges))


def to_json_value(one: Shown, lag: Lag | None) -> dict[str, Any]:
    """Return a checkpoint as JSON values."""
    return {
        "registration": one.name,
        "sources": list(one.sources),
        "physicalSource": one.physical_source or (lag.physical_source if lag else None),
        "mode": one.mode,
        "scn": one.scn,
        "timestampNs": one.time_ns,
        "phase": one.phase,
        "inUseBy": one.holder or None,
        "term": one.term,
        "file": str(one.file),
        "lag": None if lag is None else lag.to_json_value(),
    }


def _registration(place: Path, name: str | None, sources: tuple[str, ...]) -> tuple[Path, Shown]:
    """Return the folder and the one registration selected; raise CheckpointError."""
    folder = place if place.is_dir() or place.suffix != ".json" else place.parent
    if sources:
        nowhere = Shown(name or "default", sources, "start", None, None, "", folder)
        return folder, nowhere
    found = [one for one in shown_at(place) if name in (None, one.name)]
    if any(one.is_spark for one in found):
        raise CheckpointError(
            f"{place} belongs to Spark: start the query with another checkpoint folder and "
            "the option `start` instead"
        )
    if len(found) != 1:
        names = ", ".join(f"{one.name} ({one.file.name})" for one in shown_at(place))
        raise CheckpointError(
            f"{place} has several registrations: {names}; select one with --name, or give its "
            "file as PLACE"
        )
    # A client finds its file by name and digest only.
    if found[0].file != FileCheckpoints(folder).path(found[0].name, found[0].sources):
        raise CheckpointError(f"{place} is a copy, which no client reads; give the original file")
    return folder, found[0]


def _target(
    wanted: Position, old: Shown, server: ApiClient | None, held: RelayRange | None
) -> Checkpoint:
    """Return the checkpoint of a position; raise CheckpointError, ServerError."""
    if not (wanted.is_latest or wanted.place):
        return wanted.checkpoint
    if server is None or held is None:
        what = (
            "latest is a relay's newest window"
            if wanted.is_latest
            else (f"only a relay knows the window at {wanted.place}")
        )
        raise CheckpointError(f"{what}: give the relay's URL with --relay")
    if wanted.place:
        return _found_at(wanted.place, old, server)
    if held.max_scn < 0:
        raise CheckpointError("the relay has no window yet, so there is no latest one")
    return Checkpoint.at(held.max_scn, held.newest_ns or -1)


def _found_at(place: NamedPlace, old: Shown, server: ApiClient) -> Checkpoint:
    first, *others = old.sources
    parameters = urlencode({"at": str(place), "others": ",".join(others)})
    found = server.get_json(f"/api/v1/sources/{quote(first, safe='')}/position?{parameters}")
    try:
        at_s = found["committedAt"]
        return Checkpoint.at(int(found["scn"]), -1 if at_s is None else round(at_s * 1e9))
    except (KeyError, TypeError, ValueError) as error:
        raise ServerError(server.url, f"is not a relay of this project: {error!r}") from error


def _explain(old: Shown, new: Checkpoint, position: str, held: RelayRange | None) -> None:
    at = "has no checkpoint yet" if old.scn is None and not old.phase else _place_text(old)
    click.echo(f"Registration {old.name!r} of {', '.join(old.sources)} {at}.")
    if old.mode in ("snapshot", "catch-up"):
        click.echo("Its bootstrap ends here; rows already delivered stay as they are.")
    for line in consequences(old.scn, new, position, held):
        click.echo(line)


def _place_text(one: Shown) -> str:
    where = f"after window {one.scn}" if one.scn is not None else "at its beginning"
    return f"is {where}" + (f" ({one.mode} {one.phase})" if one.phase else "")


def _keep_copy(path: Path) -> Path | None:
    """Copy a checkpoint file beside the original; return None without one."""
    if not path.exists():
        return None
    moment = datetime.fromtimestamp(time.time(), UTC)
    copy = path.with_name(f"{path.name}.before-{moment:%Y%m%dT%H%M%S.%fZ}")
    try:
        shutil.copy2(path, copy)
    except OSError as error:
        raise CheckpointError(
            f"{path} was not changed, because it cannot be copied first: {error}"
        ) from error
    return copy


def _paired(ours: Sequence[Shown], theirs: Sequence[Shown]) -> list[dict[str, Any]]:
    if len(ours) == len(theirs) == 1:
        ((one,), (other,)) = ours, theirs
        return [_difference(one.name, one.sources, one.scn, other.scn)]

    def by_identity(found: Sequence[Shown]) -> dict[tuple[Any, ...], Shown]:
        return {(one.name, one.sources, one.physical_source): one for one in found}

    in_a, in_b = by_identity(ours), by_identity(theirs)
    rows = []
    for key in sorted(in_a.keys() | in_b.keys()):
        scn_a, scn_b = (found[key].scn if key in found else None for found in (in_a, in_b))
        row = _difference(key[0], key[1], scn_a, scn_b)
        if key not in in_a or key not in in_b:
            row["text"] = "only in A" if key in in_a else "only in B"
        rows.append(row)
    return rows


def _difference(name: str, sources: Sequence[str], a: int | None, b: int | None) -> dict[str, Any]:
    ahead = None if a is None or b is None or a == b else ("A" if a > b else "B")
    return {
        "registration": name,
        "sources": list(sources),
        "a": a,
        "b": b,
        "distanceScn": None if a is None or b is None else abs(a - b),
        "ahead": ahead,
        "text": distance_text(a, b),
    }


def _table_of(found: Sequence[Shown], lags: Sequence[Lag | None]) -> Table:
    columns = ["registration", "mode", "scn", "time", "sources", "in use by"]
    has_lag = any(lag is not None for lag in lags)
    has_term = any(one.term is not None for one in found)
    columns += ["term"] * has_term + ["lag"] * has_lag + ["file"]
    table = Table(*columns, box=None, pad_edge=False)
    for one, lag in zip(found, lags, strict=True):
        cells = [
            one.name + (f" ({one.physical_source})" if one.physical_source else ""),
            f"{one.mode} {one.phase}".strip(),
            _scn_text(one.scn),
            _time_text(one.time_ns),
            ", ".join(one.sources),
            f"process {one.holder}" if one.holder else "",
            *(["-" if one.term is None else str(one.term)] if has_term else []),
            *([lag.text if lag else ""] if has_lag else []),
            one.file.name,
        ]
        table.add_row(*cells)
    return table


def _scn_text(scn: int | None) -> str:
    return "-" if scn is None else str(scn)


def _time_text(time_ns: int | None) -> str:
    if time_ns is None:
        return "-"
    then = datetime.fromtimestamp(time_ns / 1e9, UTC).astimezone()
    return f"{then:%Y-%m-%d %H:%M:%S} ({duration_text(max(0.0, time.time() - time_ns / 1e9))} ago)"


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS, highlight=False)
