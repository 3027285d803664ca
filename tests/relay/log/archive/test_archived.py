"""A relay whose log has an archive serves what is deleted on its own disk, window by window."""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from databus.conf.settings import RelaySettings
from databus.relay.cli.doctor import check_archive, check_segments
from databus.relay.cli.log import log
from databus.relay.log.archive import archiver as archiver_module
from databus.relay.log.archive.manifest import ArchiveError
from databus.relay.log.archive.status import ArchiveStatus
from databus.relay.log.archive.store import ArchiveStore
from databus.relay.log.segment import segment_paths
from databus.relay.log.status import RelayLogStatus
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import SettingsError
from databus.schemas.event.v2 import peek
from tests import PATIENCE_S
from tests.relay.fakes import ServedRelay, insert, transaction, wait_until
from tests.relay.log.test_served import (
    LAST,
    SEED,
    expected as expected,
    fill,
    read_all,
    relay_log,
    settings,
    wait_for_log,
)
from tests.relay.ring.model import split_events
from tests.s3_server import S3Server

pytest_plugins = ["tests.relay.log.archive.archives"]

SHORT: dict[str, Any] = {"retention_hours": 1e-7, "compression": "none"}


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the archive, and clean the log, without waiting for seconds."""
    monkeypatch.setattr(archiver_module, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(archiver_module, "RETRY_S", 0.05)
    monkeypatch.setattr(archiver_module, "MOST_RETRY_S", 0.1)
    monkeypatch.setattr("databus.relay.log.recorder.CLEAN_EVERY_S", 0.05)


def archived(relay: ServedRelay) -> ArchiveStatus:
    """Return the status of the archive."""
    found = relay_log(relay).archive
    assert found is not None
    return found


def on_disk(relay: ServedRelay) -> RelayLogStatus:
    return relay_log(relay)


def wait_until_gone(relay: ServedRelay) -> None:
    """Wait until only the newest segment is left on the relay's disk."""
    wait_until(lambda: on_disk(relay).segments == 1 and not archived(relay).waiting, PATIENCE_S)


def open_relay(folder: Path, uri: str, **log_settings: Any) -> ServedRelay:
    return ServedRelay(folder, **settings(archive=uri, **SHORT, **log_settings))


@pytest.fixture
def relay(tmp_path: Path, uri: str) -> Iterator[ServedRelay]:
    """A relay that has all but its newest segment in the archive only."""
    served = open_relay(tmp_path / "relay", uri)
    fill(served, range(1, LAST + 1))
    wait_for_log(served, LAST)
    wait_until_gone(served)
    yield served
    served.close()


@pytest.mark.parametrize("size", [20_000, 16 << 20])
def test_a_reader_gets_every_window_from_archive_log_and_ring_once_and_in_order(
    relay: ServedRelay, expected: list[bytes], size: int
) -> None:
    assert on_disk(relay).min_scn > LAST // 2
    assert archived(relay).min_scn == 1
    events, answers = read_all(relay, size=size)
    assert events == expected
    assert answers > 1
    status = json.loads(relay.get("/health").body)["physicalSources"]["shop"]["relayLog"]
    assert "secret" not in json.dumps(status)
    assert (status["archive"]["minScn"], status["archive"]["waitingSegments"]) == (1, 0)


def test_filters_and_measures_read_the_archive_too(
    relay: ServedRelay, expected: list[bytes]
) -> None:
    events, _ = read_all(relay, sources="shop.orders", size=50_000)
    orders = relay.relay.catalog.ids["shop.orders"]
    rows = [event for event in expected if peek(event).src_id == orders]
    assert [event for event in events if peek(event).src_id >= 0] == rows
    answer = relay.get(
        "/measure", sources="shop.person,shop.orders", checkPoint=Checkpoint.at(1).to_json()
    )
    measured = json.loads(answer.body)
    assert measured["rows"] == sum(peek(e).src_id >= 0 and peek(e).scn > 1 for e in expected)


def test_a_time_a_gtid_and_an_scn_are_found_in_the_archive(relay: ServedRelay) -> None:
    def position(at: str) -> Any:
        answer = relay.get("/api/v1/sources/shop.person/position", at=at)
        return answer.status, json.loads(answer.body)

    for scn in random.Random(SEED).sample(range(3, LAST // 2), 6):
        at = datetime.fromtimestamp(scn, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        assert position(f"time:{at}")[1]["scn"] == str(scn - 1)
        found = position(f"scn:{scn}")[1]
        assert (found["scn"], found["rung"]) == (str(scn), "archive")
    status, answer = position("gtid:0-1-17")
    assert (status, "no window that is held has GTID" in answer["message"]) == (404, True)
    assert "holds scn 1 to" in answer["message"]


def test_a_relay_goes_on_with_its_archive_after_a_restart(
    relay: ServedRelay, expected: list[bytes], tmp_path: Path, uri: str
) -> None:
    relay.close()
    again = open_relay(tmp_path / "relay", uri)
    try:
        wait_until(lambda: archived(again).is_known)
        fill(again, range(LAST + 1, 2 * LAST))
        events, _ = read_all(again, size=1 << 20)
        assert events[: len(expected)] == expected
        scns = [peek(event).scn for event in events if peek(event).is_eop]
        assert scns == list(range(1, 2 * LAST))
    finally:
        again.close()


def test_another_relay_of_the_same_name_mixes_nothing_and_overwrites_nothing(
    relay: ServedRelay, expected: list[bytes], tmp_path: Path, uri: str
) -> None:
    other = open_relay(tmp_path / "other", uri)
    try:
        other.put(*(transaction(scn, insert(scn, "other" * 60)) for scn in range(1, LAST + 1)))
        wait_for_log(other, LAST)
        wait_until_gone(other)
        events, _ = read_all(other, size=1 << 20)
        assert len(events) == 2 * LAST
        assert read_all(relay, size=1 << 20)[0] == expected
    finally:
        other.close()


def test_what_the_archive_does_not_take_is_kept_and_capture_goes_on(
    tmp_path: Path, uri: str, expected: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    write, attempts = ArchiveStore.write, itertools.count()

    def cut(chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            yield chunk[: len(chunk) // 2]
            raise ArchiveError("the archive is full")

    def fails(store: ArchiveStore, path: str, chunks: Any) -> None:
        """Fail in the middle of a segment, or before a manifest."""
        if path.endswith(".json"):
            raise ArchiveError("the archive is full")
        write(store, path, chunks if next(attempts) % 2 else cut(chunks))

    relay = open_relay(tmp_path / "relay", uri)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(ArchiveStore, "write", fails)
            fill(relay, range(1, LAST + 1))
            wait_for_log(relay, LAST)
            wait_until(lambda: archived(relay).problem == "the archive is full")
            assert on_disk(relay).min_scn == 1
            assert archived(relay).segments == 0
            health = relay.get("/health")
            assert health.status == 200, health.body
            warnings = json.loads(health.body)["physicalSources"]["shop"]["warnings"]
            assert any("wait for the archive" in text for text in warnings)
            metrics = relay.get("/metrics").body.decode()
            assert 'databus_relay_archive_is_failing{physical_source="shop"} 1.0' in metrics
        wait_until_gone(relay)
        assert archived(relay).problem == ""
        assert read_all(relay, size=1 << 20)[0] == expected
    finally:
        relay.close()


def test_a_server_that_is_away_is_tried_again_until_it_is_there(
    tmp_path: Path, expected: list[bytes]
) -> None:
    with S3Server() as server:
        uri = server.uri("shop")
        server.stop()
        relay = open_relay(tmp_path / "relay", uri)
        try:
            fill(relay, range(1, LAST + 1))
            wait_for_log(relay, LAST)
            wait_until(lambda: archived(relay).errors > 0, PATIENCE_S)
            assert not archived(relay).is_known
            # Nobody knows what the archive has: neither served nor refused for good.
            recorder = relay.relay.physical_sources["shop"].recorder
            assert recorder is not None
            assert recorder.segments[0].header.first_scn == 1
            server.start()
            wait_until_gone(relay)
            assert read_all(relay, size=1 << 20)[0] == expected
        finally:
            relay.close()


def test_a_place_that_an_unlisted_archive_may_have_is_not_refused_for_good(
    relay: ServedRelay, tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay.close()

    def away(*_arguments: Any) -> None:
        raise ArchiveError("away")

    with monkeypatch.context() as patch:
        patch.setattr(ArchiveStore, "manifests", away)
        again = open_relay(tmp_path / "relay", uri)
        try:
            wait_until(lambda: archived(again).errors > 0)
            assert again.stream(checkPoint=Checkpoint.at(1).to_json()).status == 503
            patch.undo()
            wait_until(lambda: archived(again).is_known)
            assert again.stream(checkPoint=Checkpoint.at(1).to_json()).status == 200
        finally:
            again.close()


def test_a_damaged_segment_of_the_archive_is_never_served(relay: ServedRelay, uri: str) -> None:
    store = ArchiveStore(uri)
    (ring,) = store.folders("shop")
    first = min(name for name in store.names(f"shop/{ring}") if name.endswith(".segment"))
    path = f"shop/{ring}/{first}"
    data = bytearray(store.read(path))
    data[5000] ^= 1
    store.write(path, [bytes(data)])
    answer = relay.stream(checkPoint=Checkpoint.at(1).to_json())
    assert answer.status == 503
    assert "is damaged" in answer.body.decode()


HARMS: dict[str, Callable[[bytes], bytes]] = {
    "a frame": lambda data: flipped(data, len(data) // 2),
    "its index": lambda data: flipped(data, len(data) - 200),
    "cut": lambda data: data[: len(data) // 3],
}


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.fixture
def both(tmp_path: Path, uri: str) -> Iterator[ServedRelay]:
    """A relay that has all its sealed segments on disk and in the archive."""
    served = ServedRelay(tmp_path / "relay", **settings(archive=uri, compression="none"))
    fill(served, range(1, LAST + 1))
    wait_for_log(served, LAST)
    wait_until(lambda: archived(served).is_known and not archived(served).waiting, PATIENCE_S)
    yield served
    served.close()


def harmed_segment(relay: ServedRelay, harm: str) -> Path:
    """Damage a sealed segment in the middle of the log."""
    paths = segment_paths(Path(relay_log(relay).folder))
    middle = paths[len(paths) // 2]
    middle.write_bytes(HARMS[harm](middle.read_bytes()))
    return middle


@pytest.mark.parametrize("harm", HARMS)
def test_a_segment_that_is_damaged_on_disk_is_read_from_the_archive(
    both: ServedRelay, expected: list[bytes], uri: str, harm: str, tmp_path: Path
) -> None:
    middle = harmed_segment(both, harm)
    events, _ = read_all(both, size=20_000)
    assert events == expected
    assert archived(both).fetched_bytes > 0
    (warning,) = both.relay.status_of("shop").warning_texts
    assert f"{middle} is damaged at byte" in warning
    assert "read from the archive" in warning
    assert warning in json.loads(both.get("/health").body)["physicalSources"]["shop"]["warnings"]
    answer = both.get(
        "/measure", sources="shop.person,shop.orders", checkPoint=Checkpoint.at(1).to_json()
    )
    assert answer.status == 200
    verified = verify_with(both, uri, tmp_path)
    checked = check_segments("log", middle.parent)
    assert "begin and end well" in checked.text or checked.verdict == "warning"
    if harm == "cut":  # nobody knows then what it was
        assert f"there is a hole after {middle}" in checked.text
    else:
        (told,) = [line for line in verified.splitlines() if str(middle) in line]
        assert "is sound, and a relay reads that instead" in told
        assert told.partition("; ")[2].partition(" is sound")[0] in warning


def verify_with(relay: ServedRelay, uri: str, folder: Path) -> str:
    """Return what `databus log verify` prints by settings that name the archive."""
    config = folder / "relay.toml"
    shown = json.dumps(relay_log(relay).folder)
    config.write_text(
        f"""data_dir = {json.dumps(str(folder / "relay"))}
[[physical_sources]]
name = "shop"
uri = "sqlite:///{folder}/none.db"
sources = ["shop.person"]
[physical_sources.log]
dir = {shown}
archive = {json.dumps(uri)}
""",
        encoding="utf-8",
    )
    verified = CliRunner().invoke(log, ["verify", "-c", str(config)])
    assert verified.exit_code == 1, verified.output
    return verified.output


def test_a_segment_that_is_damaged_on_disk_and_in_the_archive_is_left_to_other_rungs(
    both: ServedRelay, uri: str, tmp_path: Path
) -> None:
    middle = harmed_segment(both, "a frame")
    store = ArchiveStore(uri)
    (ring,) = store.folders("shop")
    stem = middle.name.removesuffix(".segment")
    (name,) = [n for n in store.names(f"shop/{ring}") if n.startswith(stem) and "segment" in n]
    data = store.read(f"shop/{ring}/{name}")
    store.write(f"shop/{ring}/{name}", [flipped(data, len(data) // 2)])
    scns = range(1, LAST)
    scn = next(
        scn for scn in scns if both.stream(checkPoint=Checkpoint.at(scn).to_json()).status != 200
    )
    answer = both.stream(checkPoint=Checkpoint.at(scn).to_json())
    assert (answer.status, str(middle) in str(answer.headers)) == (404, True)
    assert both.stream(checkPoint=Checkpoint.at(1).to_json()).status == 200
    assert "its copy in the archive is of no use" in verify_with(both, uri, tmp_path)


def test_the_archive_has_a_retention_of_its_own(tmp_path: Path, uri: str) -> None:
    relay = open_relay(tmp_path / "relay", uri, archive_retention_bytes=1 << 20)
    try:
        fill(relay, range(1, 2 * LAST))
        wait_for_log(relay, 2 * LAST - 1)
        wait_until(lambda: archived(relay).min_scn > 1, PATIENCE_S)
        wait_until_gone(relay)
        wait_until(lambda: archived(relay).size_bytes <= 1 << 20)
        oldest = archived(relay).min_scn
        assert relay.stream(checkPoint=Checkpoint.at(1).to_json()).status == 404
        served = relay.stream(checkPoint=Checkpoint.at(oldest - 1).to_json())
        assert peek(served.body).scn == oldest
    finally:
        relay.close()


def test_the_commands_read_an_archive_without_a_relay(
    relay: ServedRelay, expected: list[bytes], uri: str, tmp_path: Path
) -> None:
    relay.close()
    run, out = CliRunner(), tmp_path / "out"
    listed = run.invoke(log, ["list", uri])
    assert listed.exit_code == 0, listed.output
    assert listed.output.count("sealed") > 3
    shown = json.loads(run.invoke(log, ["show", uri]).output)
    assert (shown["minScn"], shown["physicalSource"]) == (1, "shop")
    assert "secret" not in shown["folder"]
    verified = run.invoke(log, ["verify", uri, "--source", "shop"])
    assert verified.exit_code == 0, verified.output
    assert run.invoke(log, ["export", uri, "--out", str(out)]).exit_code == 0
    exported = split_events(out.read_bytes())
    assert exported == [event for event in expected if peek(event).scn <= shown["maxScn"]]
    printed = run.invoke(log, ["export", uri, "--json", "--until", "3"])
    lines = [json.loads(line) for line in printed.output.splitlines()]
    assert {line["sequence"] for line in lines} == {1, 2, 3}, printed.output


def test_doctor_says_whether_an_archive_can_be_written(uri: str, tmp_path: Path) -> None:
    assert check_archive("archive", uri).verdict == "ok"
    (tmp_path / "file").write_text("no folder")
    assert check_archive("archive", (tmp_path / "file").as_uri()).verdict == "error"


def test_an_archive_that_can_never_be_used_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingsError, match="must begin with one of file://"):
        open_relay(tmp_path / "relay", "ftp://server/archive")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SettingsError, match=r"pip install pyarrow"):
        open_relay(tmp_path / "relay", "file:///archive")


def test_settings_know_the_archive(tmp_path: Path) -> None:
    made = RelaySettings.model_validate(
        {"data_dir": tmp_path} | settings(archive="s3://bucket/shop", archive_after_s=5)
    )
    shop = made.physical_sources[0].log
    assert shop is not None
    assert (shop.archive, shop.archive_after_s) == ("s3://bucket/shop", 5.0)
