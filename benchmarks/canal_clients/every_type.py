"""What clients of Canal must have of each column of a table with every type."""

from __future__ import annotations

from benchmarks.canal_clients.clients import Row
from benchmarks.shared.every_type import Change


def change_of(row: Row) -> Change:
    """Return the change that a client has a row of."""
    texts = {name: value for name, value, _ in row.columns}
    return Change(row.kind, int(texts["id"] or 0), int(texts["ver"] or 0))


def wrong_columns(row: Row) -> list[str]:
    """Return the columns of a row whose text or type is not Canal's."""
    change = change_of(row)
    n = change.id
    expected: dict[str, tuple[str | None, int]] = {
        "id": (str(n), 4),
        "ver": (str(change.ver), 4),
        "nothing": (None, 4),
        "small": (str(n % 256), 5 if n % 256 >= 128 else -6),
        "large": (str((1 << 63) + n), 3),
        "price": (f"{n}.125", 3),
        "ratio": (repr(n * 0.5), 8),
        "bits": (str(n % 1024), -7),
        "word": (f"w{n}", 1),
        "line": (f"line {n} ü €", 12),
        "page": (f"page {n}", 2005),
        "raw": ("\x01\xff\x80", 2004),
        "bytes": (bytes([n % 256, 255]).decode("latin-1"), 2004),
        "blob_": (bytes([255, n % 7]).decode("latin-1"), 2004),
        "letter": (str(n % 2 + 1), 4),
        "letters": ("5", -7),
        "day": ("2020-02-29", 91),
        "span": ("-12:34:56.789", 92),
        "at": ("2020-02-29 01:02:03.456789", 93),
        "stamp": ("2020-02-29 01:02:03.456", 93),
        "year_": ("2024", 12),
    }
    found = {name: (value, sql) for name, value, sql in row.columns}
    # JSON is a text to MariaDB.
    texts = {"json_"} if found.get("json_", ("", 0))[0] != f'{{"n": {n}}}' else set()
    return sorted({name for name, one in expected.items() if found.get(name) != one} | texts)
