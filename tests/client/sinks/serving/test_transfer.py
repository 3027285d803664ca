"""All sinks and their positions as one file."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from databus.cli.main import main
from databus.client.sinks.serving.pauses import PauseFile
from databus.client.sinks.serving.positions import PositionFile, StoredPosition, hold
from databus.schemas.checkpoint import Checkpoint

SINKS = """
data_dir = "state"
relays = ["http://127.0.0.1:1"]

[[sinks]]
name = "a"
kind = "print"
sources = ["shop.*"]

[[sinks]]
name = "b"
kind = "print"
sources = ["shop.*"]
"""


def databus(folder: Path, *words: str) -> Any:
    return CliRunner().invoke(main, ["sink", *words, "-c", str(folder / "sink.toml")])


def filled(folder: Path, **scns: int) -> PositionFile:
    folder.mkdir(exist_ok=True)
    (folder / "sink.toml").write_text(SINKS)
    file = PositionFile(folder / "state")
    for name, scn in scns.items():
        file.save(StoredPosition(name, "shop", ("shop.orders",), Checkpoint.at(scn)))
    return file


def scns(folder: Path) -> dict[str, int]:
    return {one.sink: one.checkpoint.window_scn for one in PositionFile(folder / "state").all()}


def exported(folder: Path) -> str:
    file = folder / "sinks.json"
    result = databus(folder, "export", str(file))
    assert result.exit_code == 0, result.output
    return str(file)


def test_a_new_machine_gets_settings_positions_and_pauses(tmp_path: Path) -> None:
    filled(tmp_path / "one", a=7, b=9)
    PauseFile(tmp_path / "one" / "state").set("b", is_paused=True)
    file = exported(tmp_path / "one")
    assert stat.S_IMODE(Path(file).stat().st_mode) == 0o600
    (tmp_path / "two").mkdir()
    result = databus(tmp_path / "two", "import", file)
    assert (result.exit_code, "2 positions were taken" in result.output) == (0, True)
    assert (tmp_path / "two" / "sink.toml").read_text() == SINKS
    assert scns(tmp_path / "two") == {"a": 7, "b": 9}
    assert "b" in PauseFile(tmp_path / "two" / "state")
    again = databus(tmp_path / "one", "export", file)
    assert (again.exit_code, "is there already" in again.output) == (1, True)


def test_a_position_that_is_there_is_replaced_only_if_that_is_said(tmp_path: Path) -> None:
    filled(tmp_path / "one", a=7)
    file = exported(tmp_path / "one")
    filled(tmp_path / "two", a=1, b=2)
    result = databus(tmp_path / "two", "import", file)
    assert (result.exit_code, "a has a position in" in result.output) == (1, True)
    assert scns(tmp_path / "two") == {"a": 1, "b": 2}
    assert databus(tmp_path / "two", "import", file, "--replace").exit_code == 0
    assert scns(tmp_path / "two") == {"a": 7, "b": 2}


def test_nothing_is_taken_while_a_process_runs_the_sinks(tmp_path: Path) -> None:
    filled(tmp_path / "one", a=7)
    file = exported(tmp_path / "one")
    filled(tmp_path / "two")
    let_go = hold(tmp_path / "two" / "state")
    try:
        result = databus(tmp_path / "two", "import", file)
        assert (result.exit_code, "in use by process" in result.output) == (1, True)
    finally:
        let_go()
    assert scns(tmp_path / "two") == {}


def test_a_sink_that_the_settings_lack_and_a_damaged_file_are_named(tmp_path: Path) -> None:
    filled(tmp_path / "one", a=7, b=9)
    file = Path(exported(tmp_path / "one"))
    filled(tmp_path / "two")
    (tmp_path / "two" / "sink.toml").write_text(SINKS.replace('name = "b"', 'name = "c"'))
    assert "have no sink b: add it first" in databus(tmp_path / "two", "import", str(file)).output
    values = json.loads(file.read_text())
    values["positions"]["positions"]["a"]["shop"]["sources"] = ["shop.other"]
    file.write_text(json.dumps(values))
    assert "its checksum is wrong" in databus(tmp_path / "two", "import", str(file)).output
    file.write_text("[]")
    assert "is no file of" in databus(tmp_path / "two", "import", str(file)).output
    assert scns(tmp_path / "two") == {}
