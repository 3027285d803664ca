"""Three tables with rows, and a writer that never rests."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pymysql

from databus.demo.private_mariadb import HOST, PrivateMariaDB

TABLES = ("customers", "orders", "parcels")
ROWS = 5_000
PAUSE_S = 0.002
Rows = dict[tuple[str, int], int]  # (table, id) → version


def connect(server: PrivateMariaDB) -> Any:
    """Open a session of the administrator."""
    return pymysql.connect(
        host=HOST, port=server.port, user=server.user, password=server.password, autocommit=True
    )


def fill(server: PrivateMariaDB) -> None:
    """Make the database `shop` with rows in each table."""
    values = ", ".join(f"({number}, 0)" for number in range(ROWS))
    with closing(connect(server)) as session, session.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        for table in TABLES:
            cursor.execute(f"CREATE TABLE shop.{table} (id INT PRIMARY KEY, version INT)")
            cursor.execute(f"INSERT INTO shop.{table} VALUES {values}")


def rows_of(server: PrivateMariaDB) -> Rows:
    """Return every row."""
    with closing(connect(server)) as session, session.cursor() as cursor:
        found: Rows = {}
        for table in TABLES:
            cursor.execute(f"SELECT id, version FROM shop.{table}")
            found |= {(table, number): version for number, version in cursor.fetchall()}
        return found


@contextmanager
def writing(server: PrivateMariaDB, seed: int) -> Iterator[threading.Event]:
    """Insert, update and delete until the event is set, or the block ends."""
    stopped = threading.Event()

    def work() -> None:
        rng, number = random.Random(seed), ROWS
        with closing(connect(server)) as session, session.cursor() as cursor:
            while not stopped.is_set():
                number += 1
                table, old = rng.choice(TABLES), rng.randrange(number)
                cursor.execute(f"INSERT INTO shop.{table} VALUES ({number}, 0)")
                cursor.execute(f"UPDATE shop.{table} SET version = {number} WHERE id = {old}")
                if number % 5 == 0:
                    cursor.execute(f"DELETE FROM shop.{table} WHERE id = {old}")
                time.sleep(PAUSE_S)

    thread = threading.Thread(target=work, name="writer")
    thread.start()
    try:
        yield stopped
    finally:
        stopped.set()
        thread.join()
