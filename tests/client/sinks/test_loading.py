"""Sinks by name."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from databus.client.sinks import loading
from databus.client.sinks.contract import Position, Sink
from databus.client.sinks.errors import SinkUnavailableError
from databus.client.sinks.loading import BUILT_IN, sink_maker
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import CheckpointError, SettingsError
from databus.testing.recorder import Recorder, RecorderSink
from tests.client.sinks.changes import made, moved


def test_every_built_in_sink_is_there_and_keeps_the_contract(tmp_path: Path) -> None:
    options: dict[str, dict[str, object]] = {
        "files": {"folder": str(tmp_path)},
        "kafka": {"brokers": "127.0.0.1:1", "id": "x"},
        "sql": {"url": f"sqlite:///{tmp_path / 'copy.db'}"},
        "webhook": {"url": "http://127.0.0.1:1"},
    }
    for entry in BUILT_IN:
        assert isinstance(sink_maker(entry.name, options.get(entry.name, {}))(), Sink)


def test_a_class_of_an_application_gets_its_options() -> None:
    recorder = Recorder()
    make = sink_maker("databus.testing.recorder:RecorderSink", {"recorder": recorder})
    assert isinstance(make(), RecorderSink)
    assert make() is not make()  # each lane has its own


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("kafkaa", "known are .*kafka.* and module:Class"),
        ("no.such.module:Sink", "No module named 'no"),
        ("databus.testing.recorder:Nothing", "has no attribute 'Nothing'"),
        ("databus.testing.recorder:Recorder", "lacks open, write, flush, close"),
        ("os:getcwd", "lacks"),
    ],
)
def test_what_is_no_sink_is_refused(kind: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        sink_maker(kind, {})


def test_a_wrong_option_is_named() -> None:
    with pytest.raises(SettingsError, match=r"options of files: format = 'csv'"):
        sink_maker("files", {"folder": "x", "format": "csv"})
    with pytest.raises(SettingsError, match=r"options of files: folder is missing"):
        sink_maker("files", {})


def test_another_package_publishes_a_sink_by_an_entry_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = EntryPoint("recorder", "databus.testing.recorder:RecorderSink", loading.GROUP)

    def found(*, group: str, name: str = "recorder") -> list[EntryPoint]:
        assert group == loading.GROUP
        return [entry] if name == "recorder" else []

    monkeypatch.setattr(loading, "entry_points", found)
    assert isinstance(sink_maker("recorder", {"recorder": Recorder()})(), RecorderSink)
    known = ", ".join(sorted([*(one.name for one in loading.BUILT_IN), "recorder"]))
    with pytest.raises(SettingsError, match=f"known are {known}"):
        sink_maker("other", {})
    monkeypatch.setattr(loading, "entry_points", lambda **_keys: [entry, entry])
    with pytest.raises(SettingsError, match="several packages publish it"):
        sink_maker("recorder", {})


def test_a_position_is_the_same_after_a_target_has_kept_its_text() -> None:
    position = Position("shop", Checkpoint.at(5, 7).with_mark((4, 2)))
    assert Position.from_json(position.to_json()) == position
    for text in ("", "{}", "[]", '{"source": "a", "checkpoint": "{"}'):
        with pytest.raises(CheckpointError):
            Position.from_json(text)


def test_an_id_is_of_one_change() -> None:
    changes = [*moved(1, 2), made("insert", 1, scn=2)]
    assert [one.id for one in changes] == ["1:0:delete", "1:0", "2:0"]
    assert SinkUnavailableError("x", 3).retry_after_s == 3
