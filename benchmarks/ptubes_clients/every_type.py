"""What clients of Ptubes must have of each column of a table with every type."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from benchmarks.ptubes_clients.sdk import Cell, Handed
from benchmarks.shared.every_type import Change

# Times of the values, in UTC.
_DAY_MS = int(datetime(2020, 2, 29, tzinfo=UTC).timestamp()) * 1000
_AT_MS = int(datetime(2020, 2, 29, 1, 2, 3, tzinfo=UTC).timestamp()) * 1000 + 456
_SPAN_MS = -((12 * 60 + 34) * 60 + 56) * 1000 - 789


def change_of(event: Handed) -> Change:
    """Return the change that a client has an event of."""
    row = event.before if event.kind == "DELETE" else event.after
    return Change(event.kind, int(row["id"].value or 0), int(row["ver"].value or 0))


def wrong_columns(event: Handed) -> list[str]:
    """Return the columns of an event whose text, type or props are not Ptubes'."""
    change = change_of(event)
    is_before = {"before": event.kind != "INSERT", "after": event.kind != "DELETE"}
    wrong = []
    for name, row in (("before", event.before), ("after", event.after)):
        if bool(row) != is_before[name]:
            wrong.append(f"{name} row")
        elif row:
            ver = change.ver if name == "after" or event.kind == "DELETE" else 0
            wrong += _wrong(row, _expected(change.id, ver))
    return sorted(set(wrong))


def _wrong(row: Mapping[str, Cell], expected: Mapping[str, Cell]) -> list[str]:
    if row.keys() != expected.keys():
        return ["columns"]
    return [name for name, cell in expected.items() if row[name] != cell]


def _expected(n: int, ver: int) -> dict[str, Cell]:
    plain: dict[str, tuple[str | None, int]] = {
        "id": (str(n), -5),
        "ver": (str(ver), -5),
        "nothing": (None, -5),
        "small": (str(n % 256), 4),
        "large": (str((1 << 63) + n), -5),
        "price": (f"{n}.125", 3),
        "ratio": (repr(n * 0.5), 8),
        "bits": (_bits_text(n % 1024), -7),
        "word": (f"w{n}", 1),
        "line": (f"line {n} ü €", 12),
        "page": (f"page {n}", 12),
        "raw": ("\x01\xff\x80\x00", -2),
        "bytes": (bytes([n % 256, 255]).decode("latin-1"), -3),
        "blob_": (bytes([255, n % 7]).decode("latin-1"), -3),
        "letter": (str(n % 2 + 1), 1111),
        "letters": ("5", 1111),
        "year_": ("2024", 4),
        "json_": (f'{{"n": {n}}}', 12),
    }
    found = {name: Cell(value, number, {}) for name, (value, number) in plain.items()}
    span = {"nanos": "211000000", "fmtDate": "-12:34:56.789"}
    return found | {
        "day": Cell(str(_DAY_MS), 91, {}),
        "span": Cell(str(_SPAN_MS), 92, span),
        "at": Cell(str(_AT_MS), 93, {"nanos": "456789000"}),
        "stamp": Cell(str(_AT_MS), 93, {"nanos": "456000000"}),
    }


def _bits_text(number: int) -> str:
    """Return the two bytes of a BIT(10) as text."""
    return number.to_bytes(2, "big").decode("latin-1")
