"""A source that is reloaded while its changes go on: real relays, bootstrap servers and kills."""

from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from databus.cli.main import main
from databus.client.sinks.contract import Change, ChangeOp
from databus.client.sinks.errors import SinkError, SinkUnavailableError
from databus.client.sinks.running.feed import SinkState
from databus.client.sinks.running.plan import make_plan
from databus.client.sinks.serving.process import SinkProcess, make_plans
from databus.client.sinks.serving.service import served
from databus.conf.loading import build_settings, load_settings
from databus.conf.sink_settings import SinksSettings
from databus.demo.stage import Stage
from databus.schemas.errors import SettingsError
from databus.testing.recorder import Recorder
from tests import PATIENCE_S
from tests.client.shop import wait_until
from tests.client.sinks.serving.test_running_sink import running

ROWS = 2000
T1 = "CREATE TABLE t1 (id INTEGER PRIMARY KEY, v INTEGER)"
T2 = "CREATE TABLE t2 (id INTEGER PRIMARY KEY, v INTEGER)"
Session = Any


@pytest.fixture
def stage() -> Iterator[Stage]:
    """A relay and a bootstrap server over two tables; the first has rows."""
    with (
        Stage("sqlite", [T1, T2], ["shop.t1", "shop.t2"]) as stage,
        closing(stage.database.connect()) as session,
    ):
        session.begin()
        for key in range(ROWS):
            session.execute("INSERT INTO t1 VALUES (?, 0)", [key])
        session.commit()
        stage.start_relay()
        stage.start_bootstrap()
        session.execute("UPDATE t1 SET v = 1 WHERE id = 0")
        stage.await_seeded()
        yield stage


def settings_of(stage: Stage, kind: str, **more: Any) -> SinksSettings:
    raw = {
        "data_dir": stage.folder / "sinks",
        "relays": [stage.url],
        "bootstrap_servers": [stage.bootstrap_url],
        "sinks": [{"name": "copy", "kind": kind, "sources": ["shop.*"], **more}],
    }
    return build_settings(raw, SinksSettings)


def process_of(stage: Stage, recorder: Recorder, **more: Any) -> SinkProcess:
    settings = settings_of(
        stage, "recorder", **{"flush": {"seconds": 0.01}, "positions_every_s": 0, **more}
    )
    (one,) = settings.sinks
    return SinkProcess(settings, [make_plan(one, recorder.sink, stage.folder / "letters")])


def sql_process(stage: Stage, url: str) -> SinkProcess:
    """Return a process whose sink copies to a database."""
    settings = settings_of(stage, "sql", options={"url": url})
    return SinkProcess(settings, make_plans(settings))


def values(recorder: Recorder, source: str = "shop.t1") -> dict[int, int]:
    return {row["id"]: row["v"] for row in recorder.rows(source)}


def of_source(session: Session, table: str = "t1") -> dict[int, int]:
    return dict(session.rows(f"SELECT id, v FROM {table}"))


@contextmanager
def writing(stage: Stage, rng: random.Random) -> Iterator[None]:
    """Change rows of both tables until the end of the block."""
    stopped = threading.Event()

    def write() -> None:
        with closing(stage.database.connect()) as session:
            write_with(session)

    def write_with(session: Session) -> None:
        number = 1
        while not stopped.wait(0.002):
            number += 1
            key = rng.randrange(ROWS)
            session.execute("UPDATE t1 SET v = ? WHERE id = ?", [number, key])
            if number % 10 == 0:
                session.execute("DELETE FROM t1 WHERE id = ?", [rng.randrange(ROWS)])
                session.execute("INSERT OR REPLACE INTO t2 VALUES (?, ?)", [key, number])

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def loaded(process: SinkProcess, recorder: Recorder) -> None:
    """Wait until the rows of the snapshot are there."""
    wait_until(lambda: len(recorder.rows("shop.t1")) == ROWS, PATIENCE_S)
    assert process.sink("copy").reloads.status == []


def lose(recorder: Recorder, keys: Sequence[int]) -> None:
    """Let the target lose rows of the first table."""
    for key in keys:
        recorder._rows["shop.t1"].pop((key,), None)


def await_end(process: SinkProcess) -> None:
    reloads = process.sink("copy").reloads
    wait_until(lambda: reloads.status == [], PATIENCE_S)


@pytest.mark.parametrize(
    "more",
    [{}, {"order": "row", "lanes": 3}, {"keeps_position": True}],
    ids=["transaction", "lanes", "exactly once"],
)
def test_lost_rows_come_back_and_no_older_row_overwrites_a_newer_one(
    stage: Stage, more: dict[str, Any]
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    recorder = Recorder(keeps_position=more.pop("keeps_position", False))
    process = process_of(stage, recorder, **more)
    with running(process), closing(stage.database.connect()) as session:
        loaded(process, recorder)
        with writing(stage, rng):
            wait_until(lambda: recorder.rows("shop.t2"), PATIENCE_S)
            begin = len(recorder.changes)
            lose(recorder, range(0, ROWS, 2))
            process.sink("copy").reloads.add("shop.t1")
            await_end(process)
        wait_until(lambda: values(recorder) == of_source(session), PATIENCE_S)
        wait_until(lambda: values(recorder, "shop.t2") == of_source(session, "t2"), PATIENCE_S)
    written = recorder.changes[begin:]
    again = [one for one in written if one.op is ChangeOp.SNAPSHOT]
    assert {one.source for one in again} == {"shop.t1"}
    assert len(again) > ROWS // 2
    newest: dict[tuple[str, int], int] = {}
    for one in written:
        place = one.source, one.key["id"]
        assert one.scn >= newest.get(place, -1), one
        newest[place] = one.scn


def test_only_rows_of_a_condition_come_again(stage: Stage) -> None:
    recorder = Recorder()
    process = process_of(stage, recorder)
    with running(process):
        loaded(process, recorder)
        begin = len(recorder.changes)
        reloads = process.sink("copy").reloads
        reloads.add("shop.t1", "id < 10")
        await_end(process)
        assert [one.key["id"] for one in recorder.changes[begin:]] == list(range(10))
        begin = len(recorder.changes)
        reloads.add("shop.t2")  # which is empty
        await_end(process)
        assert recorder.changes[begin:] == []


def test_a_reload_goes_on_after_a_restart_and_ends_when_it_is_cancelled(stage: Stage) -> None:
    is_slow = threading.Event()

    def slowly(changes: Sequence[Change]) -> None:
        if is_slow.is_set() and changes[0].op is ChangeOp.SNAPSHOT:
            raise SinkError("the target is away")

    recorder = Recorder(fails=slowly)
    process = process_of(stage, recorder)
    with running(process):
        loaded(process, recorder)
        is_slow.set()
        process.sink("copy").reloads.add("shop.t1", "id < 1000")
        wait_until(lambda: process.sink("copy").status[0].trouble, PATIENCE_S)
    is_slow.clear()
    begin = len(recorder.changes)
    process = process_of(stage, recorder)
    with running(process):
        wait_until(lambda: len(recorder.changes) == begin + 1000, PATIENCE_S)
        await_end(process)
        is_slow.set()
        reloads = process.sink("copy").reloads
        reloads.add("shop.t1")
        wait_until(lambda: process.sink("copy").status[0].trouble, PATIENCE_S)
        assert reloads.cancel("shop.t1")
        assert not reloads.cancel("shop.t1")
        assert reloads.status == []
        is_slow.clear()
    assert (stage.folder / "sinks/reloads.json").read_text() == '{\n "reloads": []\n}\n'


def test_what_cannot_be_reloaded_is_refused_with_a_reason(stage: Stage) -> None:
    process = process_of(stage, Recorder())
    with running(process):
        reloads = process.sink("copy").reloads
        wait_until(lambda: process.sink("copy").feeds, PATIENCE_S)
        with pytest.raises(SinkError, match=r"does not read shop\.t9 now"):
            reloads.add("shop.t9")
        with pytest.raises(SettingsError, match="id <"):
            reloads.add("shop.t1", "id <")
        assert reloads.status == []


def test_a_table_that_is_emptied_meanwhile_is_read_from_the_beginning(stage: Stage) -> None:
    waits, goes_on = threading.Event(), threading.Event()

    def hold(changes: Sequence[Change]) -> None:
        if waits.is_set() and changes[0].op is ChangeOp.SNAPSHOT:
            goes_on.wait(PATIENCE_S)

    recorder = Recorder(fails=hold)
    process = process_of(stage, recorder, capacity=500)
    with running(process), closing(stage.database.connect()) as session:
        loaded(process, recorder)
        waits.set()
        process.sink("copy").reloads.add("shop.t1")
        wait_until(lambda: process.sink("copy").reloads.status[0].rows > 0, PATIENCE_S)
        session.execute("DELETE FROM t1 WHERE id >= 10")
        session.execute("UPDATE t1 SET v = 7")
        goes_on.set()
        await_end(process)
        wait_until(lambda: values(recorder) == of_source(session), PATIENCE_S)
        assert set(values(recorder).values()) == {7}


def test_a_damaged_file_of_reloads_is_said(stage: Stage, tmp_path: Path) -> None:
    del tmp_path
    folder = stage.folder / "sinks"
    folder.mkdir(exist_ok=True)
    (folder / "reloads.json").write_text("{")
    with pytest.raises(Exception, match=r"reloads.json cannot be read.*remove it"):
        process_of(stage, Recorder())


Databus = Callable[..., tuple[int, str]]


@contextmanager
def commanded(stage: Stage, is_held: threading.Event) -> Iterator[tuple[SinkProcess, Databus]]:
    """Run a sink that takes no row of a snapshot while it is held, and commands for it."""

    def hold(changes: Sequence[Change]) -> None:
        if is_held.is_set() and changes[0].op is ChangeOp.SNAPSHOT:
            raise SinkError("the target is away")

    recorder = Recorder(fails=hold)
    process = process_of(stage, recorder)
    folder = stage.folder / "sinks"
    text = f'data_dir = "{folder}"\nrelays = ["{stage.url}"]\n'
    text += '[[sinks]]\nname = "copy"\nkind = "print"\nsources = ["shop.*"]\n'
    (folder / "sink.toml").write_text(text)
    settings = load_settings(folder / "sink.toml", SinksSettings)

    def databus(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["sink", *words, "-c", str(folder / "sink.toml")])
        return result.exit_code, result.output

    with served(process, settings), running(process):
        loaded(process, recorder)
        yield process, databus
        is_held.clear()


def test_the_command_shows_a_reload_to_its_end_and_cancels_one(stage: Stage) -> None:
    held = threading.Event()
    with commanded(stage, held) as (_, databus):
        code, told = databus("reload", "copy", "shop.t1", "--wait")
        assert code == 0, told
        assert told.startswith("copy: the reload of shop.t1 has begun\n")
        assert told.endswith("copy: all rows of shop.t1 are written\n")
        held.set()
        assert databus("reload", "copy", "shop.t1", "--where", "id < 3")[0] == 0
        shown = "  reloads       shop.t1 where id < 3: "
        wait_until(lambda: shown in databus("show", "copy")[1], PATIENCE_S)
        code, told = databus("reload", "copy", "shop.t1", "--cancel")
        assert (code, told) == (0, "copy: the reload of shop.t1 is cancelled\n")
        code, told = databus("reload", "copy", "shop.t1", "--cancel")
        assert code == 1
        assert "no reload of shop.t1 runs" in told
        assert databus("reload", "copy", "shop.t9")[0] == 1


def test_who_waits_for_a_reload_is_told_that_it_was_cancelled(stage: Stage) -> None:
    held = threading.Event()
    with commanded(stage, held) as (process, databus):
        held.set()
        reloads = process.sink("copy").reloads

        def cancel() -> None:
            wait_until(lambda: reloads.status, PATIENCE_S)
            reloads.cancel("shop.t1")

        with ThreadPoolExecutor(1) as threads:
            cancelled = threads.submit(cancel)
            code, told = databus("reload", "copy", "shop.t1", "--wait")
            cancelled.result()
        assert (code, "the reload of shop.t1 was cancelled" in told) == (1, True)
        assert reloads.ends == {"shop.t1": False}


def test_a_reload_of_a_paused_sink_says_that_it_waits(stage: Stage) -> None:
    with commanded(stage, threading.Event()) as (process, databus):
        databus("pause", "copy")
        wait_until(lambda: process.sink("copy").state is SinkState.PAUSED, PATIENCE_S)
        told = databus("reload", "copy", "shop.t1")[1]
        assert told.endswith("copy is paused: the reload gets on when it runs again\n")
        databus("resume", "copy")
        await_end(process)
        assert process.sink("copy").reloads.ends == {"shop.t1": True}


@pytest.mark.mariadb
def test_a_reload_of_a_quiet_server_ends_whatever_other_tables_have_got_meanwhile() -> None:
    recorder = Recorder()
    other = "CREATE TABLE other (id INTEGER PRIMARY KEY)"
    with (
        Stage("mysql", [T1, T2, other], ["shop.t1", "shop.t2"]) as stage,
        closing(stage.database.connect()) as session,
    ):
        stage.start_relay()
        session.execute("INSERT INTO t1 VALUES (1, 1), (2, 2)")
        stage.start_bootstrap()
        stage.await_seeded()
        process = process_of(stage, recorder)
        with running(process):
            wait_until(lambda: len(recorder.rows("shop.t1")) == 2, PATIENCE_S)
            for key in range(3):
                session.execute(f"INSERT INTO other VALUES ({key})")
                begin = len(recorder.changes)
                process.sink("copy").reloads.add("shop.t1")
                await_end(process)
                assert [one.key["id"] for one in recorder.changes[begin:]] == [1, 2]


@pytest.mark.mariadb
def test_rows_of_before_an_alter_come_again_as_they_are_after_it(tmp_path: Path) -> None:
    with (
        Stage("mysql", [T1, T2], ["shop.t1", "shop.t2"]) as stage,
        closing(stage.database.connect()) as session,
    ):
        session.execute("INSERT INTO t1 VALUES (1, 1), (2, 2)")
        stage.start_relay()
        stage.start_bootstrap()
        stage.await_seeded()
        url = f"sqlite:///{tmp_path / 'copy.db'}"
        process = sql_process(stage, url)

        def copied() -> list[Any]:
            with suppress(sqlite3.Error), closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
                return copy.execute("SELECT id, w, n FROM t1 ORDER BY id").fetchall()
            return []

        with running(process):
            wait_until(lambda: process.sink("copy").feeds, PATIENCE_S)
            session.execute("ALTER TABLE t1 ADD COLUMN n INTEGER DEFAULT 7")
            session.execute("ALTER TABLE t1 CHANGE v w BIGINT")
            session.execute("INSERT INTO t1 VALUES (3, 3, 3)")
            wait_until(lambda: copied() == [(1, 1, 7), (2, 2, 7), (3, 3, 3)], PATIENCE_S)
            with closing(sqlite3.connect(tmp_path / "copy.db")) as copy, copy:
                copy.execute("DELETE FROM t1 WHERE id < 3")
            process.sink("copy").reloads.add("shop.t1")
            await_end(process)
            assert copied() == [(1, 1, 7), (2, 2, 7), (3, 3, 3)]


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_reload_is_cancelled_at_once_though_the_sink_takes_nothing(
    stage: Stage, is_paused: bool
) -> None:
    is_away = threading.Event()

    def fail(changes: Sequence[Change]) -> None:
        if is_away.is_set() and changes[0].op is ChangeOp.SNAPSHOT:
            raise SinkUnavailableError("away")

    recorder = Recorder(fails=fail)
    process = process_of(stage, recorder, capacity=100, buffer_bytes=20_000)
    with running(process):
        loaded(process, recorder)
        is_away.set()
        reloads = process.sink("copy").reloads
        reloads.add("shop.t1")
        wait_until(lambda: reloads.status[0].rows > 0, PATIENCE_S)
        if is_paused:
            process.pause("copy")
        threading.Event().wait(
            1.0
        )  # by then its thread waits for room, or for the end of the pause
        begin = len(recorder.changes)
        cancelling = threading.Thread(target=reloads.cancel, args=("shop.t1",))
        cancelling.start()
        cancelling.join(PATIENCE_S / 4)
        assert not cancelling.is_alive()
        assert reloads.status == []
        is_away.clear()
        process.resume("copy")
        reloads.add("shop.t1", "id = 5")
        await_end(process)
        # What the lane had taken of it is written, and no page more.
        again = [one.key["id"] for one in recorder.changes[begin:]]
        assert again[-1] == 5
        assert len(again) < ROWS
