"""`databus checkpoint`: shown, moved, compared; with a real relay where one is asked."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from databus.cli.main import main
from databus.client.checkpoints.store import FileCheckpoints, take_lock
from databus.client.cli.checkpoint_lag import RelayRange, consequences, distance_text, lag_of
from databus.client.spark.planning.offsets import AtScn, InSnapshot, QueryOffset, to_offset
from databus.schemas.checkpoint import Checkpoint
from tests.relay.fakes import ServedRelay, insert, transaction

ORDERS = ("shop.orders",)
HELD = RelayRange("shop", ("shop.orders",), 30, 90, 20, 90_000_000_000)


def databus(*words: object, answer: str | None = None) -> Result:
    return CliRunner().invoke(main, ["checkpoint", *map(str, words)], input=answer)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A client's folder: one registration online, one in a snapshot."""
    store = FileCheckpoints(tmp_path / "checkpoints")
    store.save("default", ORDERS, Checkpoint.at(50, 50_000_000_000))
    snapshot = (
        Checkpoint.at(7).start_bootstrap().with_start_scn(40).start_snapshot("shop.person", 0)
    )
    store.save("copy", ["shop.person"], snapshot.after_snapshot_row(12))
    return store.directory


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[ServedRelay]:
    served = ServedRelay(tmp_path / "relay")
    served.put(*(transaction(scn, insert(scn)) for scn in (10, 50, 60)))
    yield served
    served.close()


def moved(folder: Path) -> Checkpoint:
    found = FileCheckpoints(folder).load("default", ORDERS)
    assert found is not None
    return found


def test_show_says_mode_scn_time_sources_phase_and_file(folder: Path) -> None:
    result = databus("show", folder)
    copy, default = result.output.splitlines()[1:]
    assert result.exit_code == 0
    assert default.split()[:3] == ["default", "online", "50"]
    assert "1970-01-01" in default
    assert "shop.orders" in default
    assert "snapshot of shop.person, row 12, as of scn 40" in copy
    assert FileCheckpoints(folder).path("default", ORDERS).name in default


def test_show_as_json_has_the_lag_behind_a_relay(folder: Path, relay: ServedRelay) -> None:
    result = databus("show", folder, "--relay", relay.url, "--json", "--name", "default")
    (found,) = json.loads(result.output)
    assert (found["registration"], found["mode"], found["scn"]) == ("default", "online", 50)
    assert found["physicalSource"] == "shop"
    assert found["inUseBy"] is None
    assert found["lag"] == {
        "physicalSource": "shop",
        "oldestScn": 10,
        "newestScn": 60,
        "behindScn": 10,
        "behindSeconds": 10.0,
        "isHeld": True,
    }


def test_show_names_the_process_that_has_it_in_use(folder: Path) -> None:
    lock = FileCheckpoints(folder).path("default", ORDERS).with_suffix(".lock")
    let_go = take_lock(lock)
    try:
        assert f"process {os.getpid()}" in databus("show", folder, "--name", "default").output
    finally:
        let_go()
    assert "process" not in databus("show", folder, "--name", "default").output


def test_show_of_one_file_shows_that_one(folder: Path) -> None:
    path = FileCheckpoints(folder).path("default", ORDERS)
    assert len(databus("show", path).output.splitlines()) == 2


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda place: None, "no such folder or file"),
        (lambda place: place.mkdir(), "contains no checkpoint"),
        (lambda place: place.write_text("{"), "cannot be read"),
    ],
)
def test_what_is_not_there_or_damaged_is_said(
    tmp_path: Path, make: Callable[[Path], object], problem: str
) -> None:
    make(tmp_path / "place")
    result = databus("show", tmp_path / "place")
    assert (result.exit_code, problem in result.output) == (1, True), result.output


def test_a_spark_query_is_shown_as_of_its_last_batch_that_is_done(tmp_path: Path) -> None:
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
    for batch, scn in ((9, 80), (10, 90)):
        offset = json.dumps(to_offset(QueryOffset(ORDERS, {"shop": AtScn(scn, scn * 1000)})))
        text = f'v1\n{{"batchWatermarkMs":0,"conf":{{}}}}\n{offset}\n{{"logOffset":3}}'
        (tmp_path / "offsets" / str(batch)).write_text(text)
    (tmp_path / "commits" / "9").write_text("v1\n{}")
    (tmp_path / "commits" / ".9.crc").write_bytes(b"")
    (found,) = json.loads(databus("show", tmp_path, "--json").output)
    assert (found["physicalSource"], found["mode"], found["scn"]) == ("shop", "online", 80)
    assert found["phase"] == "batch 9 done, batch 10 is planned"
    result = databus("set", tmp_path, 5, "--yes")
    assert "belongs to Spark" in result.output


def test_a_spark_query_in_a_snapshot_says_which_row(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    place = InSnapshot(40, 0, "shop.orders", 12, "http://b", "x")
    (tmp_path / "offsets" / "0").write_text(
        f"v1\n{json.dumps(to_offset(QueryOffset(ORDERS, {'shop': place})))}"
    )
    assert "snapshot of shop.orders, row 12, as of scn 40" in databus("show", tmp_path).output


def test_set_moves_back_and_says_what_comes_again_and_keeps_a_copy(folder: Path) -> None:
    before = FileCheckpoints(folder).path("default", ORDERS).read_bytes()
    result = databus("set", folder, 20, "--name", "default", answer="y\n")
    assert result.exit_code == 0, result.output
    assert "Windows after 20, up to 50, are delivered AGAIN." in result.output
    assert moved(folder) == Checkpoint.at(20)
    (copy,) = folder.glob("*.before-*")
    assert copy.read_bytes() == before
    assert copy.name in result.output


def test_set_that_is_not_confirmed_changes_nothing(folder: Path) -> None:
    for answer in ("n\n", ""):
        assert databus("set", folder, 70, "--name", "default", answer=answer).exit_code == 1
    assert moved(folder).window_scn == 50
    assert list(folder.glob("*.before-*")) == []


def test_set_to_latest_asks_the_relay_and_says_what_is_left_out(
    folder: Path, relay: ServedRelay
) -> None:
    words = ("set", folder, "latest", "--name", "default", "--yes")
    assert "give the relay's URL with --relay" in databus(*words).output
    result = databus(*words, "--relay", relay.url)
    assert "Windows after 50, up to 60, are SKIPPED" in result.output
    assert moved(folder) == Checkpoint.at(60, 60_000_000_000)


def test_set_asks_the_relay_for_the_scn_of_a_named_place(folder: Path, relay: ServedRelay) -> None:
    place = "time:1970-01-01T00:00:55Z"
    words = ("set", folder, place, "--name", "default", "--yes")
    assert f"only a relay knows the window at {place}: give" in databus(*words).output
    assert databus(*words, "--relay", relay.url).exit_code == 0
    assert moved(folder) == Checkpoint.at(50, 50_000_000_000)


def test_set_to_a_place_that_the_relay_lacks_changes_nothing(
    folder: Path, relay: ServedRelay
) -> None:
    words = ("set", folder, "gtid:0-1-17", "--name", "default", "--yes", "--relay", relay.url)
    result = databus(*words)
    assert result.exit_code == 1
    assert "no window that is held has GTID 0-1-17; it holds scn 10 to 60" in result.output
    assert moved(folder).window_scn == 50


@pytest.mark.parametrize(
    ("word", "expected"), [("earliest", Checkpoint.flexible()), ("beginning", Checkpoint.at(0))]
)
def test_set_takes_the_words_of_start(folder: Path, word: str, expected: Checkpoint) -> None:
    assert databus("set", folder, word, "--name", "default", "--yes").exit_code == 0
    assert moved(folder) == expected


def test_set_refuses_while_a_client_holds_the_lock(folder: Path) -> None:
    let_go = take_lock(FileCheckpoints(folder).path("default", ORDERS).with_suffix(".lock"))
    try:
        result = databus("set", folder, 20, "--name", "default", "--yes")
    finally:
        let_go()
    assert result.exit_code == 1
    assert f"process {os.getpid()} reads this registration; stop it" in result.output
    assert moved(folder).window_scn == 50


def test_set_asks_which_registration_is_meant_and_what_a_position_is(folder: Path) -> None:
    assert "copy (copy-" in databus("set", folder, 20).output
    assert "names no place: write earliest, latest" in databus("set", folder, "yesterday").output
    assert databus("set", folder, 20, "--name", "nobody").exit_code == 1


def test_set_ends_a_bootstrap_and_says_so(folder: Path) -> None:
    result = databus("set", folder, 45, "--name", "copy", "--yes")
    assert "Its bootstrap ends here" in result.output
    kept = FileCheckpoints(folder).load("copy", ["shop.person"])
    assert kept == Checkpoint.at(45)


def test_set_makes_the_checkpoint_of_a_registration_that_has_none(tmp_path: Path) -> None:
    place = tmp_path / "new"
    result = databus("set", place, 5, "--source", "shop.orders", "--yes")
    assert "has no checkpoint yet" in result.output
    assert moved(place) == Checkpoint.at(5)


def test_diff_of_two_folders_says_which_is_ahead_and_what_is_in_one_alone(
    folder: Path, tmp_path: Path
) -> None:
    other = FileCheckpoints(tmp_path / "other")
    other.save("default", ORDERS, Checkpoint.at(45))
    rows = json.loads(databus("diff", folder, other.directory, "--json").output)
    assert [(row["registration"], row["text"]) for row in rows] == [
        ("copy", "only in A"),
        ("default", "A is 5 SCNs ahead"),
    ]
    assert (rows[1]["a"], rows[1]["b"], rows[1]["distanceScn"]) == (50, 45, 5)
    shown = databus("diff", folder, other.directory).output
    assert "A is 5 SCNs ahead" in shown


def test_diff_of_two_files_and_against_a_relay(folder: Path, relay: ServedRelay) -> None:
    path = FileCheckpoints(folder).path("default", ORDERS)
    assert "same" in databus("diff", path, path).output
    assert "B is 10 SCNs ahead" in databus("diff", path, relay.url).output


def test_a_relay_that_is_away_or_has_other_sources_is_said(
    folder: Path, relay: ServedRelay, tmp_path: Path
) -> None:
    away = databus("show", folder, "--relay", "http://127.0.0.1:9")
    assert (away.exit_code, "does not answer" in away.output) == (1, True)
    FileCheckpoints(tmp_path / "else").save("x", ["crm.contact"], Checkpoint.at(1))
    result = databus("show", tmp_path / "else", "--relay", relay.url)
    assert "unknown source 'crm.contact'" in result.output


@pytest.mark.parametrize(
    ("scn", "text"),
    [
        (90, "none"),
        (80, "10 SCNs, 10 s"),
        (95, "5 SCNs AHEAD of the relay"),
        (10, "not held: the oldest is 30"),
        (None, "not known"),
    ],
)
def test_the_lag_in_words(scn: int | None, text: str) -> None:
    assert lag_of(scn, scn and scn * 1_000_000_000, HELD).text == text


def test_consequences_name_what_the_relay_does_not_hold() -> None:
    lines = consequences(50, Checkpoint.at(5), "5", HELD)
    assert "does not hold it (its oldest window is 30)" in lines[1]
    assert "has not reached it" in consequences(50, Checkpoint.at(99), "99", HELD)[1]
    assert "starts with the oldest" in consequences(50, Checkpoint.flexible(), "earliest", HELD)[0]
    assert distance_text(None, 4) == "A has not started"


def test_a_checkpoint_under_a_lease_is_shown_with_its_term_and_set_keeps_it(
    tmp_path: Path,
) -> None:
    store = FileCheckpoints(tmp_path)
    assert store.begin_term("billing", ORDERS, 7) is None
    assert "start" in databus("show", tmp_path).output
    store.save_under("billing", ORDERS, Checkpoint.at(5), 7)
    assert json.loads(databus("show", tmp_path, "--json").output)[0]["term"] == 7
    assert "term" in databus("show", tmp_path).output
    assert databus("set", tmp_path, "3", "--yes").exit_code == 0
    assert (store.load("billing", ORDERS), store.term("billing", ORDERS)) == (Checkpoint.at(3), 7)
