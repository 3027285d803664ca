"""The comparison with Canal's own server: what is made of its readings, and of a server."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.canal_speed import run
from benchmarks.canal_speed.client import Reading
from benchmarks.canal_speed.run import KINDS, SIDES, figures_of
from benchmarks.canal_speed.servers import Serving
from benchmarks.peers.programs import BuildError


def reading(*, cpu_s: float, late_s: float, characters: int = 900) -> Reading:
    return Reading(
        rows=1000,
        columns=9000,
        characters=characters,
        late_rows=750,
        late_s=late_s,
        late_cpu_s=cpu_s / 2,
        client_cpu_s=0.1,
        cpu_s=cpu_s,
        resident_mb=100,
        anonymous_mb=50,
    )


def test_ratios_are_those_of_the_pairs_and_other_values_are_counted() -> None:
    found = {(kind, side): [reading(cpu_s=1, late_s=1)] * 2 for kind in KINDS for side in SIDES}
    found["single", "Canal server"] = [
        reading(cpu_s=8, late_s=3),
        reading(cpu_s=8, late_s=3, characters=901),
    ]
    values = {(one.name.rpartition("1000")[2], one.unit): one for one in figures_of(found, 1000)}
    assert values[": rows/s, relay / Canal server", "x"].value == 3
    # Canal's start does not count, the relay's does: 4 / 750 against 1 / 1000.
    assert values[": CPU, Canal server / relay", "x"].value == pytest.approx(16 / 3)
    others = [one for one in figures_of(found, 1000) if one.name.endswith("runs with other values")]
    assert [one.value for one in others] == [0, 1]
    assert [one.is_met for one in others] == [True, False]


def test_memory_and_cpu_are_those_of_all_processes_of_a_server() -> None:
    code = "held = bytearray(50 << 20); print('held', flush=True); input()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        serving = Serving(1, process.pid)
        resident, anonymous = serving.memory()
        assert 50 << 20 < anonymous <= resident
        assert serving.cpu_s > 0
        process.communicate(b"\n")
    assert serving.memory() == (0, 0)


def test_without_java_only_building_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(program: str) -> tuple[str, ...]:
        raise BuildError(f"{program}: there is no mvn")

    monkeypatch.setattr(run, "command_of", fail)
    monkeypatch.setattr(run, "building_figures", lambda repeats: [])
    assert run.figures(short=True) == []
    assert "there is no mvn" in capsys.readouterr().out
