"""What upserts rows with the driver of a database alone, in the best statements of it.

On PostgreSQL and MariaDB INSERT of 500 rows with ON CONFLICT or ON DUPLICATE KEY, on SQLite
`executemany`.
"""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from benchmarks.sink_speed.rows import COLUMNS, FLUSH, Row, parts
from tests.client.sinks.ready.sql.targets import Target

STATEMENT = 500


def by_hand(target: Target) -> Callable[[list[Row]], None]:
    """Return what upserts rows with the driver alone."""
    _make_table(target)
    engine = sa.create_engine(target.url, poolclass=sa.NullPool)
    driver = engine.raw_connection()
    cursor = driver.cursor()
    names = list(COLUMNS)
    if target.dialect == "mariadb":
        end = " ON DUPLICATE KEY UPDATE " + ", ".join(f"{n} = VALUES({n})" for n in names[1:])
    else:
        end = " ON CONFLICT (id) DO UPDATE SET " + ", ".join(
            f"{n} = excluded.{n}" for n in names[1:]
        )
    start = f"INSERT INTO hand ({', '.join(names)}) VALUES "

    def write(listed: list[Row]) -> None:
        for flush in parts(listed, FLUSH):
            if target.dialect == "sqlite":
                cursor.executemany(f"{start}(?,?,?,?,?){end}", flush)
            else:
                for part in parts(flush, STATEMENT):
                    text = start + ",".join(["(%s,%s,%s,%s,%s)"] * len(part)) + end
                    cursor.execute(text, [value for row in part for value in row])
            driver.commit()

    return write


def _make_table(target: Target) -> None:
    target.run("CREATE TABLE hand AS SELECT * FROM sink WHERE id < 0")
    if target.dialect == "sqlite":
        target.run("CREATE UNIQUE INDEX hand_key ON hand (id)")
    else:
        target.run("ALTER TABLE hand ADD PRIMARY KEY (id)")
