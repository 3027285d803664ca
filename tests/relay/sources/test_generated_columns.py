"""A generated column that may show a protected one is never captured unless it is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from databus.conf.column_settings import ColumnSettings
from databus.conf.settings import PhysicalSourceSettings
from databus.schemas.errors import SourceStoppedError
from tests.mariadb_server import Database
from tests.relay.sources.mysql.reading import opened, read_changes, read_full, watching
from tests.relay.sources.sqlite import shop

pytest_plugins = ["tests.mariadb", "tests.mysql"]
pytestmark = pytest.mark.mariadb

TABLE = "CREATE TABLE users (id INT PRIMARY KEY, mail VARCHAR(40))"
MADE = "VARCHAR(40) GENERATED ALWAYS AS (upper(mail))"
SAYS = "generated columns of .*users may show what `columns` leaves out or masks: g"


def hiding(settings: PhysicalSourceSettings, *more: str) -> PhysicalSourceSettings:
    """Return the settings with `mail` left out, and other columns."""
    tables = tuple(str(one) for one in settings.sources)
    entry = ColumnSettings(tables=tables, exclude=("mail", *more))
    return settings.model_copy(update={"columns": (entry,)})


def row(number: int) -> str:
    return f"INSERT INTO users (id, mail) VALUES ({number}, 's3cret')"


@pytest.fixture(params=["VIRTUAL", "STORED"])
def generated(request: pytest.FixtureRequest) -> str:
    """The definition of a column."""
    return f"{MADE} {request.param}"


def check(database: Database, folder: Path, generated: str) -> None:
    """Add a generated column while a source is read, before it is opened, and with its name."""
    database.run(TABLE)
    settings = hiding(watching(database, folder, "users"))
    with opened(settings) as source:
        database.run(row(1), f"ALTER TABLE users ADD g {generated}", row(2))
        assert read_changes(source, 1)[0].row["id"] == 1
        with pytest.raises(SourceStoppedError, match=SAYS) as stopped:
            read_full(source, 1)
        assert stopped.value.tables == (f"{database.name}.users",)
    with pytest.raises(SourceStoppedError, match=SAYS), opened(settings):
        pass
    named = hiding(watching(database, folder, "users"), "g")
    with opened(named) as source:
        database.run(row(3))
        assert read_changes(source, 1)[0].row["id"] == 3


def test_mariadb_stops_the_table(database: Database, tmp_path: Path, generated: str) -> None:
    check(database, tmp_path, generated)


def test_mysql_stops_the_table(mysql_database: Database, tmp_path: Path, generated: str) -> None:
    check(mysql_database, tmp_path, generated)


def test_sqlite_stops(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    columns: Any = [ColumnSettings(tables=("shop.users",), exclude=("mail",))]
    with shop.database(path, TABLE) as database:
        with shop.opened(path, "users", columns=columns) as source:
            database.execute(row(1))
            assert len(shop.drain(source)) > 0
            database.execute(f"ALTER TABLE users ADD g {MADE} VIRTUAL")
            database.execute(row(2))
            with pytest.raises(SourceStoppedError, match=SAYS):
                shop.drain(source)
        with (
            pytest.raises(SourceStoppedError, match=SAYS),
            shop.opened(path, "users", columns=columns),
        ):
            pass
        columns[0] = ColumnSettings(tables=("shop.users",), exclude=("mail", "g"))
        with shop.opened(path, "users", columns=columns):
            pass
