"""`databus log`: what a log holds is shown, proved, cut and exported without its relay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from databus.cli.main import main
from databus.relay.log.segment import segment_paths
from databus.schemas.event.v2 import peek
from tests.relay.fakes import ServedRelay
from tests.relay.log.test_served import LAST, filled, read_all, settings
from tests.relay.ring.model import split_events

SETTINGS = """data_dir = "{data}"
[[physical_sources]]
name = "shop"
uri = "sqlite:///shop.db"
sources = ["shop.orders"]{log}
"""


def databus(command: str, *words: object) -> Result:
    return CliRunner().invoke(main, ["log", command, *map(str, words)])


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[ServedRelay]:
    served = filled(tmp_path)
    yield served
    served.close()


@pytest.fixture
def folder(relay: ServedRelay, tmp_path: Path) -> Path:
    """The log of a relay that runs."""
    assert relay.url
    return tmp_path / "data" / "shop.relay-log"


def test_a_log_that_is_being_written_is_listed_shown_and_verified(folder: Path) -> None:
    count = len(segment_paths(folder))
    assert count > 3
    listed = databus("list", folder)
    assert listed.exit_code == 0, listed.output
    lines = [line for line in listed.output.splitlines() if ".segment" in line]
    assert len(lines) == count
    assert "being written" in lines[-1]
    assert all("sealed" in line for line in lines[:-1])
    shown = json.loads(databus("show", folder).output)
    assert (shown["physicalSource"], shown["minScn"], shown["maxScn"]) == ("shop", 1, LAST)
    assert (shown["oldest"], shown["segments"]) == ("1970-01-01T00:00:01Z", count)
    verified = databus("verify", folder)
    assert verified.exit_code == 0, verified.output
    assert verified.output.endswith(f" frames in {count} segments: 0 problems\n")


def test_a_byte_that_is_wrong_and_a_segment_that_is_missing_are_found(
    relay: ServedRelay, folder: Path
) -> None:
    relay.close()
    paths = segment_paths(folder)
    data = bytearray(paths[1].read_bytes())
    data[4000] ^= 1
    paths[1].write_bytes(data)
    verified = databus("verify", folder)
    assert verified.exit_code == 1
    assert paths[1].name in verified.output
    paths[2].unlink()
    assert "there is a hole after " + paths[1].name in databus("verify", folder).output
    assert "before a hole" in databus("list", folder).output


def test_exported_events_are_those_that_the_relay_streams(
    relay: ServedRelay, folder: Path, tmp_path: Path
) -> None:
    events, _ = read_all(relay)
    out = tmp_path / "all.events"
    assert databus("export", folder, "--out", out).exit_code == 0
    assert split_events(out.read_bytes()) == events
    result = databus("export", folder, "--after", 100, "--until", 200, "--out", out)
    assert result.exit_code == 0, result.output
    assert split_events(out.read_bytes()) == [e for e in events if 100 < peek(e).scn <= 200]


def test_exported_json_has_the_values(relay: ServedRelay, tmp_path: Path) -> None:
    file = tmp_path / "relay.toml"
    file.write_text(
        f"""data_dir = "{relay.settings.data_dir}"
[[physical_sources]]
name = "shop"
uri = "sqlite:/nowhere.db"
sources = ["shop.person", "shop.orders"]
[physical_sources.log]
"""
    )
    result = databus("export", "-c", file, "--json", "--after", 9, "--until", 10)
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.output.splitlines()]
    rows = [line["value"] for line in lines if line.get("value")]
    assert rows
    assert [row["id"] for row in rows] == list(range(100, 100 + len(rows)))
    assert databus("export", tmp_path / "data" / "shop.relay-log", "--json").exit_code == 2
    assert databus("show", "-c", file, "--source", "other").exit_code == 2


def test_the_oldest_segments_are_cut_once_no_relay_writes_the_log(
    relay: ServedRelay, folder: Path, tmp_path: Path
) -> None:
    refused = databus("cut", folder, "--before", LAST)
    assert refused.exit_code == 1
    assert "a relay is writing it" in refused.output
    relay.close()
    before = len(segment_paths(folder))
    result = databus("cut", folder, "--before", LAST // 2)
    assert result.exit_code == 0, result.output
    shown = json.loads(databus("show", folder).output)
    assert 1 < shown["minScn"] <= LAST // 2
    assert 0 < shown["segments"] < before
    again = ServedRelay(tmp_path, **settings())
    try:
        events, _ = read_all(again)
        assert peek(events[0]).scn == shown["minScn"]
    finally:
        again.close()


@pytest.mark.parametrize("command", ["list", "show", "verify", "export", "cut"])
def test_what_is_no_relay_log_is_not_taken_for_an_empty_one(command: str, tmp_path: Path) -> None:
    more = ["--before", "9"] if command == "cut" else []
    other = tmp_path / "others"
    other.mkdir()
    (other / "notes.txt").touch()
    refused = [
        (databus(command, other, *more), f"{other} has no relay log"),
        (databus(command, tmp_path / "nothing", *more), "is no folder"),
    ]
    for log, problem in (("\nlog = {}", "is no folder"), ("", "has no physical source with a log")):
        (tmp_path / "relay.toml").write_text(SETTINGS.format(data=tmp_path / "data", log=log))
        refused.append((databus(command, "-c", tmp_path / "relay.toml", *more), problem))
    if command != "cut":
        refused.append((databus(command, other.as_uri()), "has no physical source with a log"))
    for found, problem in refused:
        assert found.exit_code == 2
        assert problem in found.output
    assert [path.name for path in other.iterdir()] == ["notes.txt"]
