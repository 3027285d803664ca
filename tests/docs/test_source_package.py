"""docs/sources.md: the package of a kind of source that the page shows, published and captured."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from databus.conf.loading import build_settings
from databus.conf.settings import PhysicalSourceSettings, RelaySettings
from databus.doctor.checks import Verdict
from databus.relay.relay import Relay
from databus.relay.sources.kind import check_source
from databus.schemas.event.event import Event
from databus.schemas.event.v2 import decode
from tests.docs.markdown import blocks_of
from tests.relay.fakes import wait_until
from tools.repository import ROOT

CELLAR = '{"at_ms": 1700000000000, "sensor": "cellar", "celsius": 11.5}\n'
ATTIC = '{"at_ms": 1700000001000, "sensor": "attic", "celsius": null}\n'


def block(ending: str) -> str:
    """Return the page's block that this module runs in one of its ways."""
    reason = f"tests/docs/test_source_package.py {ending}"
    found = [b for b in blocks_of(ROOT / "docs" / "sources.md") if b.reason_not_run == reason]
    (one,) = found
    return one.text


@pytest.fixture
def readings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install the page's package and return the file that its source reads."""
    project = tomllib.loads(block("publishes it"))
    (module,) = project["tool"]["setuptools"]["py-modules"]
    (entry,) = project["project"]["entry-points"]["databus.sources"].items()
    folder = tmp_path / "site"
    about = folder / f"{module}-1.0.dist-info"
    about.mkdir(parents=True)
    about.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    about.joinpath("entry_points.txt").write_text(f"[databus.sources]\n{' = '.join(entry)}\n")
    folder.joinpath(f"{module}.py").write_text(block("runs it"))
    monkeypatch.syspath_prepend(folder)
    yield tmp_path / "readings.jsonl"
    sys.modules.pop(module, None)


@pytest.fixture
def relay(readings: Path, tmp_path: Path) -> Iterator[Relay]:
    raw = settings_of(readings)
    raw["data_dir"] = tmp_path / "data"
    made = Relay(build_settings(raw, RelaySettings))
    made.start()
    yield made
    made.stop()


def settings_of(readings: Path) -> dict[str, Any]:
    raw = tomllib.loads(block("starts a relay with it"))
    (source,) = raw["physical_sources"]
    assert source["uri"].startswith("lines:/")
    source["uri"] = f"lines:{readings}"
    return raw


def events_of(relay: Relay) -> list[Event]:
    reader = relay.physical_sources["sensors"].reader
    data, at = reader.read(reader.head, 1 << 16), 0
    found = []
    while at < len(data):
        event, at = decode(data, at)
        found.append(event)
    return [event for event in found if not event.is_control]


def state_of(relay: Relay) -> tuple[str, str]:
    status = relay.physical_sources["sensors"].capture.status
    return status.state.value, status.problem


def test_its_lines_are_captured_also_those_written_later(relay: Relay, readings: Path) -> None:
    wait_until(lambda: state_of(relay)[0] == "unreachable")
    readings.write_text(CELLAR + ATTIC[:20])
    ring = relay.physical_sources["sensors"].ring
    wait_until(lambda: ring.max_scn == 1)
    with readings.open("a") as file:
        file.write(ATTIC[20:])
    wait_until(lambda: ring.max_scn == 2)
    assert [event.key for event in events_of(relay)] == [b"cellar", b"attic"]
    (version,) = relay.registry.versions("house.readings")
    assert '{"name":"celsius","type":["null","double"]' in version.text


def test_a_line_that_is_no_json_stops_it_with_what_to_do(relay: Relay, readings: Path) -> None:
    readings.write_text(CELLAR + "eleven degrees\n")
    wait_until(lambda: state_of(relay)[0] == "error")
    assert "at line 2" in state_of(relay)[1]
    assert "correct the line" in state_of(relay)[1]
    readings.write_text(CELLAR + ATTIC)
    relay.physical_sources["sensors"].capture.start()
    wait_until(lambda: state_of(relay) == ("running", ""))


def test_the_doctor_reports_a_missing_file(readings: Path) -> None:
    (raw,) = settings_of(readings)["physical_sources"]
    source = PhysicalSourceSettings(**raw)
    (missing,) = check_source(source, 0.0, reads_log=True, newest_scn=None)
    readings.write_text(CELLAR)
    (found,) = check_source(source, 0.0, reads_log=True, newest_scn=None)
    assert (missing.verdict, found.verdict) == (Verdict.ERROR, Verdict.OK)
