"""`databus sink skip` where the target does not name the row: it is found, shown, and skipped."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from databus.client.cli import sink_steering
from databus.client.sinks.contract import Change
from databus.client.sinks.errors import SinkRefusedError, SinkUnavailableError
from databus.client.sinks.serving.process import SinkProcess, make_plans
from databus.client.sinks.serving.service import served
from databus.conf.loading import load_settings
from databus.conf.sink_settings import SinksSettings
from databus.testing import RelayForTests
from databus.testing.recorder import Recorder
from tests.client.shop import wait_until
from tests.client.sinks.serving.test_running_sink import keys, relay, running
from tests.client.sinks.serving.test_steering import Steered, databus, steered

__all__ = ["relay"]  # a fixture

ROWS = [(1, "tea"), (2, "rum"), (3, "milk"), (4, "gin"), (5, "juice")]


def insert(relay: RelayForTests) -> None:
    """Insert rows, of which the second and the fourth are refused, in one transaction."""
    values = ", ".join(f"({key}, '{item}')" for key, item in ROWS)
    relay.execute(f"INSERT INTO orders VALUES {values}")


@contextmanager
def copying(folder: Path, relay: RelayForTests) -> Iterator[Steered]:
    """A sink `sql` with default settings, whose target has a constraint of its own."""
    with closing(sqlite3.connect(folder / "copy.db")) as target:
        target.execute(
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT "
            "CHECK (item NOT IN ('rum', 'gin')))"
        )
        target.commit()
    file = folder / "sink.toml"
    file.write_text(
        f'data_dir = "{folder}"\nrelays = ["{relay.url}"]\n[[sinks]]\nname = "a"\nkind = "sql"\n'
        f'sources = ["shop.orders"]\noptions = {{ url = "sqlite:///{folder}/copy.db" }}\n'
    )
    settings = load_settings(file, SinksSettings)
    process = SinkProcess(settings, make_plans(settings, file))
    with served(process, settings), running(process):
        yield Steered(folder, process)


def copied(folder: Path) -> list[int]:
    with closing(sqlite3.connect(folder / "copy.db")) as target:
        return [key for (key,) in target.execute("SELECT id FROM orders ORDER BY id")]


def is_stopped(one: Steered) -> bool:
    return bool(one.show()["state"] == "stopped")


def failure(one: Steered) -> Any:
    feeds = one.show()["physicalSources"]
    return feeds[0]["failure"] if feeds else None


def failing_key(one: Steered) -> Any:
    """Return the key of the row that is known to fail."""
    row = (failure(one) or {}).get("row")
    return row and row["key"]


def all_refused(*ids: int) -> Recorder:
    """Return a target that refuses these rows, and does not say which."""

    def refuse(changes: Sequence[Change]) -> None:
        if any(one.key["id"] in ids for one in changes):
            raise SinkRefusedError("one of them is too long")

    return Recorder(fails=refuse)


def test_skip_finds_the_row_that_a_database_refuses_and_skips_it_alone(
    relay: RelayForTests, tmp_path: Path
) -> None:
    with copying(tmp_path, relay) as one:
        insert(relay)
        wait_until(lambda: is_stopped(one))
        assert failure(one)["row"] is None
        assert "one of 5; which one is not known, `skip` looks for it" in one.sink("show", "a")
        said = one.sink("skip", "a", input="y\n")
        assert "a fails with one of 5 rows: SinkRefusedError" in said
        assert 'a fails with insert shop.orders {"id": 2}' in said
        assert 'skipped insert shop.orders {"id": 2}' in said
        wait_until(lambda: failing_key(one) == {"id": 4})
        assert 'skipped insert shop.orders {"id": 4}' in one.sink("skip", "a", "--yes")
        wait_until(lambda: copied(tmp_path) == [1, 3, 5])
        wait_until(lambda: one.show()["state"] == "running")
        relay.execute("INSERT INTO orders VALUES (6, 'tea')")
        wait_until(lambda: copied(tmp_path) == [1, 3, 5, 6])


def test_a_row_that_was_found_is_kept_without_a_yes(relay: RelayForTests, tmp_path: Path) -> None:
    with copying(tmp_path, relay) as one:
        insert(relay)
        wait_until(lambda: is_stopped(one))
        said = databus(tmp_path, "skip", "a", input="n\n")
        assert (said.exit_code, '{"id": 2}' in said.output) == (1, True)
        assert failing_key(one) == {"id": 2}
        assert one.show()["physicalSources"][0]["skipped"] == 0


def test_a_row_that_is_not_found_in_time_is_not_skipped(
    relay: RelayForTests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_steering, "_FIND_S", 0.2)
    may_go_on = threading.Event()

    def slow(changes: Sequence[Change]) -> None:
        if any(one.key["id"] == 2 for one in changes):
            if len(changes) == 1:
                may_go_on.wait()
            raise SinkRefusedError("one of them is too long")

    with steered(tmp_path, relay, Recorder(fails=slow)) as one:
        insert(relay)
        wait_until(lambda: is_stopped(one))
        said = databus(tmp_path, "skip", "a", "--yes")
        may_go_on.set()
        assert said.exit_code == 1
        assert "is not found yet, and nothing is skipped" in said.output
        assert "call `skip` again" in said.output
        wait_until(lambda: failing_key(one) == {"id": 2})
        assert 'skipped insert shop.orders {"id": 2}' in one.sink("skip", "a", "--yes")


def test_a_row_that_is_not_refused_any_more_is_not_skipped(
    relay: RelayForTests, tmp_path: Path
) -> None:
    is_narrow = threading.Event()
    is_narrow.set()

    def refuse(changes: Sequence[Change]) -> None:
        if is_narrow.is_set():
            raise SinkRefusedError("too long")

    recorder = Recorder(fails=refuse)
    with steered(tmp_path, relay, recorder) as one:
        insert(relay)
        wait_until(lambda: is_stopped(one))
        is_narrow.clear()
        said = databus(tmp_path, "skip", "a", "--yes")
        assert (said.exit_code, "no row fails any more" in said.output) == (1, True)
        wait_until(lambda: [key for _, key in keys(recorder)] == [1, 2, 3, 4, 5])


def test_no_row_is_looked_for_while_the_target_is_away(
    relay: RelayForTests, tmp_path: Path
) -> None:
    def away(_changes: Sequence[Change]) -> None:
        raise SinkUnavailableError("away")

    with steered(tmp_path, relay, Recorder(fails=away)) as one:
        insert(relay)
        wait_until(lambda: failure(one) is not None)
        said = databus(tmp_path, "skip", "a", "--yes")
        assert (said.exit_code, "no row is to blame: SinkUnavailable" in said.output) == (1, True)
        assert failure(one)["row"] is None


def test_a_request_to_find_a_row_skips_none(relay: RelayForTests, tmp_path: Path) -> None:
    body = json.dumps({"physicalSource": "shop"}).encode()
    with steered(tmp_path, relay, all_refused(2)) as one:
        insert(relay)
        wait_until(lambda: is_stopped(one))
        for _ in range(3):
            assert one.ask("/api/v1/sinks/a/find-row", "POST", body)[0] == 200
            wait_until(lambda: failing_key(one) == {"id": 2})
        assert one.show()["physicalSources"][0]["skipped"] == 0
        for name, wrong in (("a", b'{"physicalSource": "other"}'), ("b", body)):
            assert one.ask(f"/api/v1/sinks/{name}/find-row", "POST", wrong)[0] == 404
