"""The result of a comparison: counts, and differing rows, in a file of JSON lines.

    {"verify": {"source": …, "target": …, "physicalSource": …, "columns": […], "where": …}}
    {"key": {"id": 5}, "kind": "missing", "columns": […], "inSource": {…}, "inTarget": null,
     "sourceScn": …, "targetScn": …, "untilScn": …}
    {"key": {"id": 6}, "kind": "duplicate", …, "sourceRows": 1, "targetRows": 2}
    {"chunk": {"after": 2000, "last": 4000, "scn": …, "rows": …, "targetRows": …,
     "isEqual": false, "differingRows": 1}}
    {"totals": {"rows": …, …}}

Chunks are in the file of a comparison by checksums in the stream. A file without totals
comes from a comparison that did not finish.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

from databus.client.spark.verify.chunks import KeyRanges
from databus.client.spark.verify.differences import Difference, Kind
from databus.client.spark.verify.table_shape import Key, Shape
from databus.schemas.columns.avro_columns import AvroColumn, Kind as ColumnKind
from databus.schemas.errors import SettingsError
from databus.schemas.event.json import json_value


@dataclass(frozen=True, slots=True)
class Step:
    """The progress of one step; `total` may be an estimate, None if not known."""

    name: str
    done: int
    total: int | None
    unit: str = "rows"


OnStep = Callable[[Step], None]


def unseen(step: Step) -> None:
    """Ignore a step."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The two sides of a comparison, and the compared part."""

    source: str
    target: str
    physical_source: str
    columns: tuple[str, ...]
    where: str = ""


@dataclass(slots=True)
class ChunkResult:
    """A chunk whose checksum came in the stream, at `scn`.

    Its keys are in (`after`, `last`], None = no limit. `is_equal`: the target's rows of the
    chunk had the same checksum there. `differing_rows` were not made equal by later changes.
    """

    after: int | None
    last: int | None
    scn: int
    rows: int
    target_rows: int
    is_equal: bool
    differing_rows: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the chunk as a JSON object."""
        return {
            "after": self.after,
            "last": self.last,
            "scn": self.scn,
            "rows": self.rows,
            "targetRows": self.target_rows,
            "isEqual": self.is_equal,
            "differingRows": self.differing_rows,
        }


@dataclass(slots=True)
class Report:
    """The counts. `rows` are those of the source, `target_rows` those of the target.

    `differing_rows`: source rows in differing chunks at the time of the digest; about
    so many are fetched. `moving`: rows that differed when they were read, but only
    because of changes on their way. `unsettled`: with `settle_s`, rows that changed
    between all reads, so that their state is not known. `unexplained_chunks`: chunks whose
    digests differed at every look, though none of their rows did. `differences`: the first
    differences; the file has all. `chunk_results`: with `through_log`, all chunks.
    """

    compared: Compared
    rows: int = 0
    target_rows: int = 0
    chunks: int = 0
    differing_chunks: int = 0
    differing_rows: int = 0
    fetched_rows: int = 0
    fetched_target_rows: int = 0
    moving: int = 0
    unsettled: int = 0
    unexplained_chunks: int = 0
    counts: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))
    differences: list[Difference] = field(default_factory=list)
    position: int | None = None
    until_scn: int | None = None
    chunk_results: list[ChunkResult] = field(default_factory=list)

    @property
    def is_same(self) -> bool:
        """Whether no row differs, and no digest that nothing explains."""
        return not any(self.counts.values()) and not self.unexplained_chunks

    def totals(self) -> dict[str, Any]:
        """Return the counts as a JSON object."""
        return {
            "isSame": self.is_same,
            "rows": self.rows,
            "targetRows": self.target_rows,
            "chunks": self.chunks,
            "differingChunks": self.differing_chunks,
            "differingRows": self.differing_rows,
            "fetchedRows": self.fetched_rows,
            "fetchedTargetRows": self.fetched_target_rows,
            "moving": self.moving,
            "unsettled": self.unsettled,
            "unexplainedChunks": self.unexplained_chunks,
            **{str(kind): count for kind, count in self.counts.items()},
            "position": self.position,
            "untilScn": self.until_scn,
        }


class Findings:
    """Collects differences: counts all, keeps the first ones, writes all to a file."""

    def __init__(self, report: Report, shape: Shape, out: IO[str] | None, most_kept: int) -> None:
        self._report = report
        self._shape = shape
        self._out = out
        self._most_kept = most_kept
        # The first line tells `repair` what was compared.
        self._write({"verify": asdict(report.compared)})

    def add(self, found: Difference) -> None:
        """Add one difference."""
        self._report.counts[found.kind] += 1
        if self._report.chunk_results:
            self._chunk_of(found).differing_rows += 1
        if len(self._report.differences) < self._most_kept:
            self._report.differences.append(found)
        self._write(_difference_json(self._shape, found))

    def _chunk_of(self, found: Difference) -> ChunkResult:
        results = self._report.chunk_results
        if len(results) == 1:
            return results[0]
        # Of several chunks, each but the last one has a last key.
        bounds = tuple(one.last for one in results if one.last is not None)
        return results[KeyRanges(bounds).chunk_of(found.key[0])]

    def end(self) -> None:
        """Write the chunks, and the totals."""
        for chunk in self._report.chunk_results:
            self._write({"chunk": chunk.to_json()})
        self._write({"totals": self._report.totals()})

    def _write(self, value: Mapping[str, Any]) -> None:
        if self._out is not None:
            print(json.dumps(value, ensure_ascii=False), file=self._out)


@contextmanager
def findings_in(
    path: Path | None, report: Report, shape: Shape, most_kept: int
) -> Iterator[Findings]:
    """Yield a collector of differences, which writes to `path` if given; raises SettingsError."""
    if path is None:
        yield Findings(report, shape, None, most_kept)
        return
    try:
        out = path.open("w", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"report {path}: {error.strerror}") from error
    with out:
        yield Findings(report, shape, out, most_kept)


def _difference_json(shape: Shape, found: Difference) -> dict[str, Any]:
    counts = {"sourceRows": found.source_rows, "targetRows": found.target_rows}
    return {
        "key": json_value(dict(zip(shape.key_names, found.key, strict=True))),
        "kind": str(found.kind),
        "columns": list(found.columns),
        "inSource": json_value(found.in_source),
        "inTarget": json_value(found.in_target),
        "sourceScn": found.source_scn,
        "targetScn": found.target_scn,
        "untilScn": found.until_scn,
        **(counts if found.kind is Kind.DUPLICATE else {}),
    }


@dataclass(frozen=True, slots=True)
class Reported:
    """The content of a report file: what was compared, and the differing keys as JSON.

    `duplicates`: those of `keys` that have several rows.
    """

    compared: Compared
    keys: tuple[Mapping[str, Any], ...]
    duplicates: tuple[Mapping[str, Any], ...] = ()


def read_report(path: Path) -> Reported:
    """Return the content of a report file; raises SettingsError."""
    unfinished = SettingsError(
        f"report {path} has no totals: the comparison did not finish; compare again with databus "
        f"spark verify --report {path}"
    )
    try:
        texts = path.read_text(encoding="utf-8", errors="replace").splitlines()
        # Of a comparison that was killed, the last line may be cut off, or there is none.
        if not texts or (len(texts) > 1 and not _is_json(texts[-1])):
            raise unfinished
        lines = [json.loads(text) for text in texts]
        head = lines[0]["verify"]
        columns = tuple(head["columns"])
        compared = Compared(**{**head, "columns": columns})
        found = [line for line in lines if "key" in line]
        keys = tuple(line["key"] for line in found)
        twice = tuple(line["key"] for line in found if line["kind"] == Kind.DUPLICATE)
    except OSError as error:
        raise SettingsError(f"report {path}: {error.strerror}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise SettingsError(
            f"report {path} is not a file of databus spark verify --report: {error!r}"
        ) from error
    if "totals" not in lines[-1]:
        raise unfinished
    return Reported(compared, keys, twice)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def keys_of(shape: Shape, reported: Sequence[Mapping[str, Any]]) -> list[Key]:
    """Return reported keys as values of the table; raises SettingsError if they do not fit."""
    found = []
    for key in reported:
        try:
            values = [_value(column, key[column.name]) for column in shape.key]
        except (KeyError, ValueError, TypeError, ArithmeticError) as error:
            raise SettingsError(
                f"report: {json.dumps(key)} is not a key of {shape.source}, whose key is "
                f"({', '.join(shape.key_names)}): compare again"
            ) from error
        found.append(tuple(values))
    return found


def _value(column: AvroColumn, value: Any) -> Any:
    """Return the value that `json_value` converted to JSON."""
    make = _FROM_JSON.get(column.kind)
    return value if make is None or value is None else make(value)


def _float(value: Any) -> float:
    return math.nan if value == "NaN" else float(value)


# The inverse of `json_value`, for kinds that JSON has no type for.
_FROM_JSON: Mapping[ColumnKind, Callable[[Any], Any]] = {
    ColumnKind.BYTES: lambda text: b64decode(text, validate=True),
    ColumnKind.DECIMAL: Decimal,
    ColumnKind.DATE: date.fromisoformat,
    ColumnKind.DATETIME: datetime.fromisoformat,
    ColumnKind.TIMESTAMP: datetime.fromisoformat,
    ColumnKind.FLOAT: _float,
    ColumnKind.DOUBLE: _float,
}
