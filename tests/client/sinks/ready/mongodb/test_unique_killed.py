"""`databus sink run` with lanes into a unique index, killed under a writer that swaps values."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing

import pytest

from databus.demo.databases import Session
from databus.demo.processes import wait_until
from databus.demo.stage import Stage
from tests.client.sinks.ready.mongodb.mongo_server import PrivateMongo
from tests.client.sinks.serving.test_killed import PATIENCE_S, kill_both, writing

pytestmark = pytest.mark.mongodb

KILLS = 10
KEYS = 30
TABLE = "CREATE TABLE t (id INTEGER PRIMARY KEY, u TEXT UNIQUE, n INTEGER)"
SINK = """
data_dir = "state"
relays = ["{url}"]

[[sinks]]
name = "unique"
kind = "mongodb"
sources = ["shop.t"]
order = "row"
lanes = 4
unique = "writeset"
options = {{ url = "{mongo}" }}
flush = {{ rows = 20, seconds = 0.05 }}
failures = {{ back_off = {{ first_s = 0.1, max_s = 0.5 }} }}
"""


def change(session: Session, rng: random.Random, number: int) -> None:
    """Commit one transaction: rows swap their values, take free ones, or go and come."""
    session.begin()
    for _ in range(rng.randint(1, 3)):
        one, other = rng.sample(range(KEYS), 2)
        held = dict(session.rows("SELECT id, u FROM t"))
        if one not in held:
            session.execute("INSERT INTO t VALUES (?, ?, ?)", [one, f"new {number} {one}", number])
        elif rng.random() < 0.1:
            session.execute("DELETE FROM t WHERE id = ?", [one])
        elif other in held:
            for key, value in ((one, f"tmp {number}"), (other, held[one]), (one, held[other])):
                session.execute("UPDATE t SET u = ?, n = ? WHERE id = ?", [value, number, key])
    session.commit()


class NeverKilled:
    """In place of a server that is not to be killed: half of the kills are none then."""

    def kill(self) -> None: ...

    def start(self) -> None: ...


@pytest.mark.parametrize("kills_the_server", [False, True])
def test_after_kills_rows_that_swapped_unique_values_equal_the_source(
    new_mongo: Callable[[], PrivateMongo], kills_the_server: bool
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with (
        new_mongo() as mongo,
        Stage("sqlite", [TABLE], ["shop.t"]) as made,
        closing(made.database.connect()) as session,
        mongo.client() as client,
    ):
        client.shop.t.create_index("u", unique=True)
        made.start_relay()
        settings = made.folder / "sink.toml"
        settings.write_text(SINK.format(url=made.url, mongo=mongo.url))
        with writing(made, rng, change):
            kill_both(made, rng, settings, mongo if kills_the_server else NeverKilled(), KILLS)
        wanted = {key: (u, n) for key, u, n in session.rows("SELECT id, u, n FROM t")}
        assert len(wanted) > 10

        def documents() -> dict[int, tuple[str, int]]:
            return {one["_id"]: (one["u"], one["n"]) for one in client.shop.t.find()}

        wait_until(lambda: documents() == wanted, PATIENCE_S, "the documents")
