"""The view of a comparison on a terminal: bars while it runs, tables when it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import RenderableType
from rich.progress import TimeElapsedColumn
from rich.table import Table

from databus.cli.progress_bars import progress_bars
from databus.client.spark.verify.differences import Difference, Kind
from databus.client.spark.verify.report import OnStep, Report, Step
from databus.schemas.event.json import json_value

MOST_VALUE_CHARS = 40
MOST_CHUNKS = 20


def shown(report: Report) -> Iterator[RenderableType]:
    """Yield a table of the counts, then a table of the first differing rows."""
    table = Table(
        "source", "target", "rows", "chunks", "fetched", *map(str, Kind), "moving", "unsettled"
    )
    table.add_row(
        report.compared.source,
        report.compared.target,
        f"{report.rows:,} / {report.target_rows:,}",
        f"{report.differing_chunks:,} of {report.chunks:,} differ",
        f"{report.fetched_rows:,} / {report.fetched_target_rows:,}",
        *(f"{count:,}" for count in report.counts.values()),
        f"{report.moving:,}",
        f"{report.unsettled:,}",
    )
    yield table
    if report.unexplained_chunks:
        yield _unexplained(report)
    if report.chunk_results:
        yield _chunks(report)
    if report.differences:
        yield _differences(report)


def _unexplained(report: Report) -> str:
    return (
        f"{report.unexplained_chunks:,} chunks have other digests, or another number of rows, on "
        "the two sides at every look, but no row of them was found that differs. So it is not "
        "known that they are the same: compare again while nothing is written, and report it as a "
        "defect of databus if it stays"
    )


def _chunks(report: Report) -> Table | str:
    """Return the chunks whose checksums differ; the file has all of them."""
    equal = sum(one.is_equal for one in report.chunk_results)
    scns = [one.scn for one in report.chunk_results]
    title = f"{equal:,} chunks are equal at their checksums, from scn {scns[0]} to scn {scns[-1]}"
    if equal == len(scns):
        return title
    table = Table("keys", "scn", "rows", "differing rows", title=f"{title}; different are:")
    different = [one for one in report.chunk_results if not one.is_equal]
    for one in different[:MOST_CHUNKS]:
        first = "" if one.after is None else one.after + 1
        last = "" if one.last is None else one.last
        rows = f"{one.rows:,} / {one.target_rows:,}"
        table.add_row(f"{first} … {last}", str(one.scn), rows, f"{one.differing_rows:,}")
    return table


def _differences(report: Report) -> Table:
    title = f"{report.compared.source}: the first differing rows"
    table = Table("key", "target", "scn", "in the source", "in the target", title=title)
    for one in report.differences:
        scn = "" if one.target_scn is None else str(one.target_scn)
        sides = (_values(one, one.in_source), _values(one, one.in_target))
        table.add_row(", ".join(map(short, one.key)), _kind(one), scn, *sides)
    return table


def _kind(one: Difference) -> str:
    if one.kind is not Kind.DUPLICATE:
        return str(one.kind)
    # Of a source with several rows of a key, no copy can be right.
    counts = [f"{one.target_rows:,} rows"]
    counts += [f"{one.source_rows:,} in the source"] if one.source_rows > 1 else []
    return f"{one.kind}: {', '.join(counts)}"


def _values(one: Difference, row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    return ", ".join(f"{name}={short(row[name])}" for name in one.columns)


def short(value: Any) -> str:
    """Return a value as JSON, cut to MOST_VALUE_CHARS."""
    text = json.dumps(json_value(value), ensure_ascii=False)
    return text if len(text) <= MOST_VALUE_CHARS else f"{text[: MOST_VALUE_CHARS - 1]}…"


@contextmanager
def shown_steps() -> Iterator[OnStep]:
    """Show a bar for each step on stderr, if that is a terminal."""
    with progress_bars(TimeElapsedColumn()) as bars:

        def on_step(step: Step) -> None:
            total = None if step.total is None else max(step.total, step.done)
            words = f"{step.done:,} {step.unit}"
            bars.update(step.name, words, completed=step.done, total=total)

        yield on_step
