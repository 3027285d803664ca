"""The sink `files` writes into its own folder only, and alone."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from databus.client.sinks.contract import Opening, Position
from databus.client.sinks.errors import SinkError
from databus.client.sinks.ready import files_owner
from databus.client.sinks.ready.files import FilesSink
from databus.schemas.checkpoint import Checkpoint
from tests.client.sinks.ready.files_sinks import change, closed, read, sink
from tests.s3_server import S3Server

__all__ = ["closed"]

OPENING = Opening("test", "shop")
AT_1 = Opening("test", "shop", Position("shop", Checkpoint.at(1)))
_HOLD = """
import sys
from databus.client.sinks.contract import Opening
from databus.client.sinks.ready.files import FilesSink
files = FilesSink(FilesSink.Options.model_validate({"folder": sys.argv[1]}))
files.open(Opening("test", "shop"))
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


def flush(files: FilesSink, scn: int) -> None:
    files.write([change(scn)])
    files.flush()


def opened(folder: Path, opening: Opening = OPENING) -> FilesSink:
    files = sink(folder)
    files.open(opening)
    return files


def test_a_second_process_is_refused_until_the_first_one_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"open\n"
        for _ in range(2):
            second = sink(tmp_path)
            with pytest.raises(SinkError, match=rf"process .*:{first.pid} writes into this folder"):
                second.open(OPENING)
            second.close()
        first.send_signal(signal.SIGKILL)
    flush(opened(tmp_path), 1)
    assert read(tmp_path) == [1]


def test_two_sinks_of_one_process_do_not_share_a_folder(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(SinkError, match="writes into this folder: stop it, or name another"):
        opened(tmp_path, Opening("other", "shop"))
    first.close()
    with pytest.raises(SinkError, match="is the folder of the sink test over shop: name another"):
        opened(tmp_path, Opening("other", "shop"))


def test_of_two_objects_of_one_sink_the_newer_one_has_the_folder(tmp_path: Path) -> None:
    first, second = opened(tmp_path), opened(tmp_path)
    flush(second, 1)
    with pytest.raises(SinkError, match="a newer one of this sink writes into it"):
        flush(first, 1)
    first.close()
    flush(second, 2)
    assert read(tmp_path) == [1, 2]


def test_a_folder_that_was_removed_stops_the_sink(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    files = opened(folder)
    flush(files, 1)
    shutil.rmtree(folder)
    files.write([change(2)])
    with pytest.raises(SinkError, match="has no manifest any more"):
        files.flush()
    files.close()
    assert not folder.exists()
    with pytest.raises(SinkError, match="put the folder back, or begin anew with another name"):
        opened(folder, AT_1)


def test_a_folder_in_which_nothing_was_written_yet_is_known_again(tmp_path: Path) -> None:
    opened(tmp_path).close()
    files = opened(tmp_path, AT_1)
    flush(files, 2)
    assert read(tmp_path) == [2]


def test_a_damaged_name_of_the_sink_is_an_error(tmp_path: Path) -> None:
    opened(tmp_path).close()
    (tmp_path / "_manifest" / "sink").write_text("{")
    with pytest.raises(SinkError, match="_manifest/sink is damaged"):
        opened(tmp_path)


def test_the_newest_process_wins_where_there_are_no_locks(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(process: str, opening: Opening = OPENING) -> FilesSink:
        monkeypatch.setattr(files_owner, "_TOKEN", process)
        files = sink(s3.uri("changes"))
        files.open(opening)
        return files

    flush(start("first"), 1)
    first = start("first")
    second = start("second", AT_1)
    flush(second, 2)
    monkeypatch.setattr(files_owner, "_TOKEN", "first")
    with pytest.raises(SinkError, match="another process writes into it: second"):
        flush(first, 2)
    with pytest.raises(SinkError, match="another process writes into it: second"):
        start("first")  # also if it tries again
    assert start("third", AT_1).flush() == Position("shop", Checkpoint.at(2))


def test_a_bucket_that_was_emptied_is_not_the_one_that_was_left(s3: S3Server) -> None:
    files = sink(s3.uri("elsewhere"))
    with pytest.raises(SinkError, match="has no manifest any more"):
        files.open(AT_1)
