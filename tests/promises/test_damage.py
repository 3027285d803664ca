"""Files that are damaged, in use or cannot grow: a clear word, and a way on without loss."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from databus.client import DatabusClient
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import CheckpointError, ScnNotFoundError
from tests.promises.running import (
    Remembering,
    RunningRelay,
    Shop,
    consuming,
    running,
    wait_until,
)


def refusal(relay: RunningRelay) -> str:
    """Launch a relay that must not start; return its only line on why."""
    before = relay.child.log.read_text() if relay.child.log.exists() else ""
    relay.launch()
    assert relay.end() == 1
    said = relay.child.log.read_text()[len(before) :]
    assert said.startswith("Error: ")
    assert said.count("\n") == 1
    return said


@pytest.fixture
def stopped(relay: RunningRelay, shop: Shop) -> RunningRelay:
    """A relay that has captured five windows and was stopped in good order."""
    for number in range(1, 6):
        shop.insert(number)
        wait_until(lambda n=number: len(relay.windows()) == n, "a window")  # type: ignore[misc]
    relay.child.stop()
    return relay


def test_a_port_in_use_is_named_and_nothing_is_touched(
    relay: RunningRelay, shop: Shop, tmp_path: Path
) -> None:
    second = RunningRelay(tmp_path, shop.settings(), name="second", http={"port": relay.port})
    said = refusal(second)
    assert f":{relay.port} is in use" in said
    assert "http.port" in said
    shop.insert(1)
    wait_until(lambda: relay.windows(), "the window")
    assert not (second.data_dir / "shop.scn").exists()


def test_a_second_relay_on_one_data_dir_is_refused(
    relay: RunningRelay, shop: Shop, tmp_path: Path
) -> None:
    second = RunningRelay(tmp_path, shop.settings(), name="second", data_dir=str(relay.data_dir))
    said = refusal(second)
    assert str(relay.data_dir) in said
    assert "another data_dir" in said
    shop.insert(1)
    wait_until(lambda: relay.windows(), "the window")


def test_a_disk_too_full_for_the_ring_is_said_before_anything_is_served(
    shop: Shop, tmp_path: Path
) -> None:
    limited = ["sh", "-c", 'ulimit -f 1000; exec "$@"', "sh"]
    relay = RunningRelay(tmp_path, shop.settings(), prefix=limited)
    said = refusal(relay)
    assert "shop.ring" in said
    assert "ring_bytes" in said
    assert not list(relay.data_dir.glob("*.ring*"))
    enough = RunningRelay(tmp_path, shop.settings())
    with running(enough.start()):
        shop.insert(1)
        wait_until(lambda: enough.windows(), "the window")


def test_a_disk_that_fills_up_stops_capture_and_loses_nothing(
    relay: RunningRelay, shop: Shop
) -> None:
    shop.insert(1)
    wait_until(lambda: len(relay.windows()) == 1, "the window")
    unlimited = resource.prlimit(relay.child.pid, resource.RLIMIT_FSIZE)
    # A file that cannot grow is what a full disk is, for one process.
    resource.prlimit(relay.child.pid, resource.RLIMIT_FSIZE, (0, unlimited[1]))
    relay.post("/relayCommand/saveMetaState")
    shop.insert(2)
    wait_until(lambda: relay.problem(), "a problem")
    assert relay.get("/health").status == 503
    assert len(relay.stream().body) > 0
    resource.prlimit(relay.child.pid, resource.RLIMIT_FSIZE, unlimited)
    shop.insert(3)
    relay.post("/controlSources/unpause")
    seen = Remembering()
    with consuming([relay.url], ["shop.orders"], seen):
        wait_until(lambda: len(seen.events) == 3, "the rows")
    assert [event.row["id"] for event in seen.events] == [1, 2, 3]
    wait_until(lambda: relay.get("/health").status == 200, "all to be saved", relay.tell)


def test_a_damaged_max_scn_says_how_to_go_on(stopped: RunningRelay, shop: Shop) -> None:
    file = stopped.data_dir / "shop.scn"
    for content in (b"", b"\0" * 40, b"77:2026-01-01T00:00:00Z crc=0\n"):
        file.write_bytes(content)
        said = refusal(stopped)
        assert str(file) in said
        assert "remove it" in said
    file.unlink()
    shop.insert(6)
    with running(stopped.start()):
        wait_until(lambda: len(stopped.windows()) == 6, "the window")


def test_a_damaged_ring_says_how_to_go_on_and_no_client_misses_a_window(
    stopped: RunningRelay, shop: Shop
) -> None:
    file = stopped.data_dir / "shop.ring"
    with file.open("r+b") as opened:
        opened.write(b"\xa5" * 4096)
    said = refusal(stopped)
    assert str(file) in said
    assert "move the file away" in said
    file.rename(file.with_suffix(".damaged"))
    shop.insert(6)
    with running(stopped.start()):
        up_to_date = Remembering()
        with consuming([stopped.url], ["shop.orders"], up_to_date, start="5"):
            wait_until(lambda: up_to_date.windows, "the window")
        assert [event.row["id"] for event in up_to_date.events] == [6]
        with pytest.raises(ScnNotFoundError, match="scn 3 is gone"):
            run(stopped, start="3")


@pytest.mark.parametrize("damaged", ["shop.ring", "shop.scn"])
def test_a_physical_source_with_a_damaged_file_is_not_served_and_the_others_are(
    shop: Shop, tmp_path: Path, damaged: str
) -> None:
    other = Shop(tmp_path / "crm.db")
    second = other.settings(name="crm", sources=["crm.orders"])
    relay = RunningRelay(tmp_path, shop.settings(), second)
    with running(relay.start()):
        shop.insert(1)
        other.insert(1)
        wait_until(lambda: len(relay.windows(sources="shop.orders")) == 1, "the window")
        relay.child.stop()
    file = relay.data_dir / damaged
    with file.open("r+b") as opened:
        opened.write(b"\xa5" * 4096)
    other.insert(2)
    with running(relay.serve()):
        wait_until(lambda: len(relay.windows(sources="crm.orders")) == 2, "the other's window")
        refused = relay.stream(sources="shop.orders")
        assert refused.status == 503
        assert str(file) in refused.json()["message"]
        health = relay.get("/health")
        assert (health.status, health.json()["physicalSources"]["shop"]["state"]) == (503, "error")
        assert str(file) in relay.problem("shop")
        assert relay.problem("crm") == ""
        assert relay.get("/ready").status == 200
        assert relay.get("/api/v1/physicalSources/shop").status == 503
        noted = relay.get("/api/v1/problems").json()["problems"]
        assert ("shop", True) in {(p["physicalSource"], str(file) in p["text"]) for p in noted}
        assert {p["name"] for p in relay.get("/physicalSources").json()} == {"shop", "crm"}
        metrics = relay.get("/metrics").body.decode()
        assert 'source_state{physical_source="shop",state="error"} 1.0' in metrics
        relay.child.stop()
    file.rename(file.with_suffix(".damaged"))
    with running(relay.start()):
        shop.insert(2)
        wait_until(lambda: relay.windows(sources="shop.orders"), "the window")
    other.close()


def test_a_relay_whose_physical_sources_are_all_damaged_does_not_start(
    shop: Shop, tmp_path: Path
) -> None:
    relay = RunningRelay(
        tmp_path, shop.settings(), shop.settings(name="crm", sources=["crm.orders"])
    )
    relay.data_dir.mkdir(parents=True)
    for name in ("shop.scn", "crm.scn"):
        (relay.data_dir / name).write_bytes(b"no scn")
    said = refusal(relay)
    assert all(f"{relay.data_dir / name}" in said for name in ("shop.scn", "crm.scn"))


def test_a_ring_cut_short_gives_what_is_whole_and_tells_those_behind(
    stopped: RunningRelay, shop: Shop
) -> None:
    before = stopped.data_dir / "shop.ring"
    with before.open("r+b") as opened:
        opened.truncate(5000)
    shop.insert(6)
    with running(stopped.start()):
        wait_until(lambda: list(stopped.windows())[-1:] == [6], "the window")
        held = list(stopped.windows())
        assert held == list(range(held[0], 7))
        for scn in range(held[0] - 1):
            answer = stopped.stream(Checkpoint.at(scn))
            assert (
                answer.headers["x-dbus-error-cause"]
                == "com.linkedin.databus.core.ScnNotFoundException"
            )


def test_a_damaged_schema_store_is_named(stopped: RunningRelay) -> None:
    (store,) = stopped.data_dir.glob("schemas*.db")
    copy = store.with_name("schemas.db.copy")
    whole = copy.read_bytes()
    for file in (store, copy):
        file.write_bytes(b"no database at all, but a text" * 100)
    assert str(store) in refusal(stopped)
    copy.write_bytes(whole)
    with running(stopped.start()):
        assert len(stopped.windows()) == 5
        assert "its copy was put back" in stopped.child.log.read_text()


def test_a_damaged_checkpoint_stops_the_client_with_a_way_on(
    relay: RunningRelay, shop: Shop, tmp_path: Path
) -> None:
    shop.insert(1)
    directory = tmp_path / "state"
    with consuming([relay.url], ["shop.orders"], Remembering(), checkpoint_dir=directory) as client:
        wait_until(lambda: client.status()[0].scn > 0, "the window")
    (file,) = directory.glob("*.json")
    for content in ("", "{", '{"registration": "other"}', "[" * 100_000):
        file.write_text(content)
        with pytest.raises(CheckpointError, match="remove it") as caught:
            run(relay, checkpoint_dir=directory)
        assert str(file) in str(caught.value)
        assert file.read_text() == content


def run(relay: RunningRelay, **options: object) -> None:
    client = DatabusClient([relay.url], **options)  # type: ignore[arg-type]
    client.register(Remembering(), ["shop.orders"])
    client.run()


def test_a_checkpoint_that_cannot_be_written_stops_the_client(
    relay: RunningRelay, shop: Shop, tmp_path: Path
) -> None:
    shop.insert(1)
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="checkpoint_dir"):
        run(relay, checkpoint_dir=tmp_path / "file" / "state")


def test_a_relay_that_lost_everything_gives_no_window_silently(
    stopped: RunningRelay, shop: Shop
) -> None:
    for file in stopped.data_dir.iterdir():
        file.unlink()
    stopped.change(start="latest")
    with running(stopped.start()):
        shop.insert(6)
        wait_until(lambda: len(stopped.windows()) == 1, "the window")
        answer = stopped.stream(Checkpoint.at(3))
        assert (
            answer.headers["x-dbus-error-cause"] == "com.linkedin.databus.core.ScnNotFoundException"
        )
